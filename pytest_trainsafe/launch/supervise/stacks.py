"""Summarises the ranks' faulthandler dumps: where each rank is, and which is the odd one out."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pytest_trainsafe.core.code_files import TORCH, is_ours, is_stdlib, only_calls, passes_on

_FRAME = re.compile(r'^  File "(?P<file>.*)", line (?P<line>\d+) in (?P<name>.*)$')

#: Names of functions that answer at once, such as get_rank, and of those that wait for other ranks.
_LOOKS_UP = re.compile(r"(get|is)_")
_WAITS = re.compile(r"gather|scatter|reduce|broadcast|barrier|all_to_all|send|recv|wait|store")

#: Names of torch's decorator functions: of its logging, and of code that is not compiled.
_DECORATORS = ("wrapper", "_fn")


@dataclass(frozen=True, order=True)
class Place:
    """Where a rank is: the innermost line of the user's code.

    `waits_in` is the torch function that this line called, "" if it called none, or one that waits
    for nothing.
    """

    file: str
    line: int
    function: str
    waits_in: str = ""

    def __str__(self) -> str:
        where = f"{self.file}:{self.line} ({self.function})"
        return f"in {self.waits_in} at {where}" if self.waits_in else f"at {where}"


def main_thread(dump: str) -> list[tuple[str, int, str]]:
    """The main thread's frames (file, line, function), innermost first.

    The main thread is the last one in the text, as faulthandler writes it last.
    """
    frames: list[tuple[str, int, str]] = []
    for line in dump.splitlines():
        if "most recent call first" in line:
            frames = []
        elif found := _FRAME.match(line):
            frames.append((found["file"], int(found["line"]), found["name"]))
    return frames


def without_ours(dump: str) -> str:
    """The dump without uninformative frames, with the main thread first.

    Frames are uninformative if they belong to this package, which every rank has on its stack, or
    if they are torch's wrappers.  Threads that have no other frames are left out, and so is the
    list of loaded extension modules.
    """
    kept = []
    for section in dump.split("\n\n"):
        if section.lstrip().startswith("Extension modules:"):  # a long line, after a signal
            continue
        lines = section.splitlines()
        frames = [found for line in lines if (found := _FRAME.match(line))]
        theirs = [f.string for f in frames if not _is_between(f["file"], f["name"])]
        if theirs or not frames:
            kept.append("\n".join(s for s in lines if not _FRAME.match(s) or s in theirs))
    return "\n\n".join([*kept[-1:], *kept[:-1]])


def place_of(dump: str) -> Place | None:
    """Where the main thread is: the innermost line of the user's code in a faulthandler dump.

    If the thread runs only code of libraries, the result is its innermost line.  Frames of this
    package, and of code that has no file, are ignored; None if there are no other frames, such as
    in an empty dump.
    """
    frames = [frame for frame in main_thread(dump) if not _is_ours(frame[0])]
    if not frames:
        return None
    called: list[str] = []
    for file, line, name in frames:
        if not _is_library(file):
            return Place(file, line, name, _waits_in(called))
        if _is_torch(file) and name not in _DECORATORS and not only_calls(file, name):
            called.append(name)
    return Place(*frames[0])


def _waits_in(called: Sequence[str]) -> str:
    """The outermost of these torch functions, innermost first; "" if none of them can wait."""
    if not called or (_LOOKS_UP.match(called[-1]) and not any(map(_WAITS.search, called))):
        return ""
    return called[-1]


def group_places(places: Mapping[int, Place | None]) -> list[tuple[Place | None, list[int]]]:
    """Groups ranks by the source line that they execute.

    `places` maps each rank to its place, None if it is unknown.  Returns each place with its ranks,
    the largest group first and unknown places last.
    """
    groups: dict[Place | None, list[int]] = {}
    for rank, place in sorted(places.items()):
        groups.setdefault(place, []).append(rank)
    return sorted(groups.items(), key=lambda item: (item[0] is None, -len(item[1]), item[1]))


def odd_ranks(places: Mapping[int, Place | None], finished: list[int]) -> list[int]:
    """The ranks for which the others seem to wait; empty if there are none.

    The result is the first of these lists that has ranks:
    1. if some ranks wait in torch, the ranks at a known place that do not wait in torch;
    2. if some ranks wait in torch, `finished`, the ranks whose program has ended;
    3. if one known place has more ranks than any other, the ranks at the other known places.
    """
    waiting = [rank for rank, place in places.items() if place is not None and place.waits_in]
    others = [rank for rank, place in places.items() if place is not None and not place.waits_in]
    if waiting and (others or finished):
        return sorted(others or finished)
    groups = group_places({rank: place for rank, place in places.items() if place is not None})
    if len(groups) > 1 and len(groups[0][1]) > len(groups[1][1]):
        return sorted(rank for _, ranks in groups[1:] for rank in ranks)
    return []


def _is_between(file: str, name: str) -> bool:
    return _is_ours(file) or only_calls(file, name)


def _is_ours(file: str) -> bool:
    return is_ours(file) or file.startswith("<")


def _is_torch(file: str) -> bool:
    return file.startswith(TORCH)


def _is_library(file: str) -> bool:
    return is_stdlib(file) or _is_torch(file) or passes_on(file)
