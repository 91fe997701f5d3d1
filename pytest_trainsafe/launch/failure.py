"""GroupFailure: the failure of a group of ranks, as a message for pytest."""

from __future__ import annotations

import re
import signal

from pytest_trainsafe.core.code_files import is_installed, is_stdlib, relative
from pytest_trainsafe.core.cut_text import MESSAGE_LIMIT, cut, cut_lines
from pytest_trainsafe.core.point import Point
from pytest_trainsafe.core.usage import name_ranks
from pytest_trainsafe.errors import TrainsafeError
from pytest_trainsafe.launch.axis import axis_text
from pytest_trainsafe.launch.files import CUT
from pytest_trainsafe.launch.result import GroupResult, RankResult
from pytest_trainsafe.launch.supervise.stacks import (
    Place,
    group_places,
    odd_ranks,
    place_of,
    without_ours,
)

_INDENT = "  "
#: A frame in the text of a traceback: its file and line.
_FRAME = re.compile(r'^ *File "([^"\n]+)", line (\d+)', re.MULTILINE)
_OWN_LINE = re.compile(r"(/[^\n:]+:[1-9]\d{0,6}): ")


class GroupFailure(TrainsafeError):
    """The failure of a group of ranks; `result` holds everything that is known about it.

    `what` describes the group, such as "the candidate at tp=2", if a test has several; else "".
    `told_by` is the test whose report has the whole message, which is then left out; else "".
    `axis` says along which axes of the mesh the ranks part, "" if that is not known.
    """

    def __init__(
        self, result: GroupResult, what: str = "", told_by: str = "", axis: str = ""
    ) -> None:
        whole = message(result, what, axis=axis)
        super().__init__(short(result, what, told_by) if told_by else whole)
        self.line = in_one_line(result, what)
        self.result = result
        self.what = what
        self.told_by = told_by
        self.axis = axis

    def leave_out_printed(self) -> None:
        """Leaves out what the failed rank printed, which a section of a test's report has."""
        if not self.told_by:
            self.args = (message(self.result, self.what, printed=False, axis=self.axis),)


def raise_for_failure(result: GroupResult, what: str = "", point: Point | None = None) -> None:
    """Raises GroupFailure, whose message says what happened, unless the result is `ok`.

    `what` describes the group in the message, such as "the candidate at tp=2".  `point` is the
    Point of the ranks, if they have one: the message then names the axes along which they part.
    """
    if not result.ok:
        stood = [text for text, _ in standing(result)]
        axis = "" if point is None else axis_text(result, point, stood)
        raise GroupFailure(result, what, axis=axis)


def message(result: GroupResult, what: str = "", printed: bool = True, axis: str = "") -> str:
    """The whole text: headline, evidence of the first failed rank, the other ranks, files."""
    parts = [headline(result), *([f"this was {what}"] if what else []), *result.mismatches[1:]]
    parts += [f"axis: {axis}"] if axis else []
    if result.mismatches and not all(rank.status == "ok" for rank in result.ranks):
        parts.append(_what_happened(result))
    first = None if result.first_failed is None else result.ranks[result.first_failed]
    if first is not None:
        parts += _evidence(first, printed)
    if result.hint:
        parts.append(result.hint)
    parts += _others(result)
    parts += [*result.waiting, *_stacks(result)]
    if result.problem and result.launcher_log:
        parts += ["output of the launcher:", _quote(result.launcher_log, 30)]
    parts.append(f"files: {result.folder}")
    return cut(cut_lines("\n".join(parts)), MESSAGE_LIMIT)


def short(result: GroupResult, what: str, told_by: str) -> str:
    """The text of a failure whose whole message is in the report of the test `told_by`."""
    parts = [reason(result), *([f"this was {what}"] if what else [])]
    told = f"the same run ended {told_by}, whose report has the tracebacks of its ranks"
    return "\n".join([*parts, told, f"files: {result.folder}"])


def in_one_line(result: GroupResult, what: str = "") -> str:
    """What happened, with the line of the program first: a terminal cuts the end.

    For example `rank 1 raised ValueError at train.py:20: no such file, in the reference, on a
    single device, in float64`.
    """
    first = None if result.first_failed is None else result.ranks[result.first_failed]
    text = headline(result).partition("\n")[0]
    if first is not None and first.status == "raised" and not (result.mismatches or result.problem):
        place = f" at {relative(at)}" if (at := raised_at(result)) else ""
        error = first.error.partition("\n")[0].removeprefix(f"{at}: ")
        text = f"rank {first.rank} raised {first.error_type}{place}{f': {error}' if error else ''}"
    elif odd := [] if result.mismatches or _absent(result) else _odd(result):
        waits = _places(result).get(odd[0])
        text += f", {waits}" if waits is not None else ""
    # The node id beside this line names the candidate.
    return f"{text}, in {what}" if what and not what.startswith("the candidate") else text


def headline(result: GroupResult) -> str:
    """One sentence that says what happened."""
    # A disagreement on a collective explains every later failure.
    return result.mismatches[0] if result.mismatches else _what_happened(result)


def raised(result: GroupResult) -> frozenset[tuple[str, str]]:
    """The exceptions (class and text) that ended a group; empty if it ended in another way.

    It is empty, whatever some ranks raised, if any rank died or hung, or if ranks disagreed on a
    collective.
    """
    ended = all(rank.status in ("ok", "raised", "stopped") for rank in result.ranks)
    if result.mismatches or result.problem or not ended:
        return frozenset()
    return frozenset((r.error_type, r.error) for r in result.ranks if r.status == "raised")


def hung(result: GroupResult) -> bool:
    """Whether the timeout or a deadlock ended a group; another dtype would not change that."""
    return not result.problem and any(rank.status == "hung" for rank in result.ranks)


def reason(result: GroupResult) -> str:
    """The headline's first line, with the line of the program at which the first rank failed."""
    line = headline(result).partition("\n")[0]
    place = raised_at(result)
    known = not place or place in line or relative(place) in line
    return line if known else f"{line}, at {place}"


def raised_at(result: GroupResult) -> str:
    """The file:line of the program at which the first failed rank raised; "" if none raised.

    If ranks disagreed on a collective, it is the line of the call; if others waited for a rank that
    ran its own code, the line at which it was.  An error that begins with a line of a file is about
    this file.
    """
    if result.mismatch_at:
        return result.mismatch_at
    first = None if result.first_failed is None else result.ranks[result.first_failed]
    place = _absent(result)
    if first is None and place is not None:
        return f"{place.file}:{place.line}"
    if first is None:
        return ""
    own = _OWN_LINE.match(first.error)
    return own[1] if own is not None else _program_line(first.traceback)


def standing(result: GroupResult) -> list[tuple[str, bool]]:
    """For each rank where it stood when the group ended, and whether it is the odd one out.

    The text is a status, or the line at which a rank that did not end waits or computes.
    """
    places, odd = _places(result), _odd(result)
    found = []
    for rank in result.ranks:
        place = places.get(rank.rank)
        text = f"{rank.status} {place}" if place is not None else rank.status
        if rank.status == "raised":
            text = f"raised {rank.error_type} at {_program_line(rank.traceback) or 'unknown line'}"
        elif rank.status == "died":
            text = _death(rank.exit_code)
        found.append((text, rank.rank in odd or rank.rank == result.first_failed))
    return found


def stood_at(result: GroupResult) -> dict[int, str]:
    """The "file:line" at which each rank that did not end stood, if its stack is known."""
    places = _places(result).items()
    return {rank: f"{at.file}:{at.line}" for rank, at in places if at is not None}


def _program_line(text: str) -> str:
    """file:line of a traceback's innermost frame outside of packages; else of its innermost frame.

    "" if the text contains no frame.
    """
    found = [(file, number) for file, number in _FRAME.findall(text)]
    own = [each for each in found if not (is_installed(each[0]) or is_stdlib(each[0]))]
    return ":".join((own or found)[-1]) if found else ""


def _what_happened(result: GroupResult) -> str:
    world = len(result.ranks)
    if result.problem:
        return f"{result.task} on {world} ranks: {result.problem}"
    if result.first_failed is not None:
        return _sentence(result.ranks[result.first_failed], world)
    if suspended := [rank.rank for rank in result.ranks if rank.suspended]:
        was = "were" if len(suspended) > 1 else "was"
        return (
            f"{name_ranks(suspended)} of {world} {was} suspended by a signal (SIGSTOP or similar, "
            "process state T) and not resumed"
        )
    hung = [rank for rank in result.ranks if rank.status == "hung"]
    text = f"{len(hung)} of {world} ranks had not finished after {result.timeout:g} s"
    if result.stuck:
        text = f"{len(hung)} of {world} ranks were stuck in calls that cannot complete"
    odd = _odd(result)
    if not odd:
        return text
    if (place := _absent(result)) is not None:
        are, at = "are" if len(odd) > 1 else "is", relative(f"{place.file}:{place.line}")
        return f"{name_ranks(odd)} {are} at {at} and did not come to {_missed(result, odd)}; {text}"
    if world == 2:  # where neither of two is the odd one
        return f"{text}; rank {1 - odd[0]} waits for rank {odd[0]}"
    if all(result.ranks[rank].status == "ok" for rank in odd):
        return f"{text}; {name_ranks(odd)} had finished, so the others wait in vain"
    are = "is the odd one out" if len(odd) == 1 else "are the odd ones out"
    return f"{text}; {name_ranks(odd)} {are}"


def _sentence(rank: RankResult, world: int) -> str:
    subject = f"rank {rank.rank} of {world}"
    if rank.status == "raised":
        return f"{subject} raised {rank.error_type}: {rank.error}"
    return f"{subject} {_death(rank.exit_code)}"


def _death(code: int | None) -> str:
    if not code:
        return "ended without a result, and the launcher saw no failure; did it call os._exit(0)?"
    if code < 0:
        return f"was killed by {signal_name(-code)} (signal {-code})"
    return f"ended without a result, with exit code {code}"


def signal_name(number: int) -> str:
    """The signal's name, such as SIGKILL, or SIGRTMIN+6 for a real-time signal."""
    try:
        return signal.Signals(number).name
    except ValueError:
        first = int(signal.SIGRTMIN)
        return f"SIGRTMIN+{number - first}" if first < number else "a signal of the C library"


def _evidence(rank: RankResult, printed: bool) -> list[str]:
    parts = []
    if rank.traceback:
        parts += ["", _quote_ends(rank.traceback, 20, 40)]
    if printed and (text := _printed(rank)):
        parts += [f"stderr of rank {rank.rank}:", _quote(text, 20)]
    if rank.status == "died" and rank.stack:
        parts += [f"stack of rank {rank.rank}:", _quote_start(without_ours(rank.stack), 40)]
    if rank.last_collective:
        parts.append(f"its last collective: {rank.last_collective}")
    return parts


def _printed(rank: RankResult) -> str:
    """What a rank wrote to stderr beside its traceback, whose start may be cut off, or ""."""
    text = rank.stderr.replace(rank.traceback, "") if rank.traceback else rank.stderr
    rest = text.partition("\n")[2] if text.startswith(CUT) else text
    told = bool(rest) and rank.traceback.endswith(rest)
    return text if text.strip() and not told else ""


def _others(result: GroupResult) -> list[str]:
    """Lines on the ranks other than the one that failed first.

    Ranks that raised the same error as that rank share a line.  Ranks whose stacks are reported
    have no line.
    """
    lines = []
    first = None if result.first_failed is None else result.ranks[result.first_failed]
    same = [
        r.rank for r in result.ranks if first is not None and r is not first and _same(r, first)
    ]
    if same:
        lines.append(f"{name_ranks(same)} raised the same error")
    for rank in result.ranks:
        if rank is first or rank.rank in same:
            continue
        if rank.status == "ok":
            lines.append(f"rank {rank.rank} had finished")
        elif rank.status in ("raised", "died"):
            lines.append(f"{_sentence(rank, len(result.ranks))}".splitlines()[0])
        elif rank.status == "stopped" and not rank.stack:
            lines.append(f"rank {rank.rank} was stopped")
    return lines if len(lines) < len(result.ranks) or first is not None else []


def _same(rank: RankResult, first: RankResult) -> bool:
    raised = rank.status == first.status == "raised"
    return raised and (rank.error_type, rank.error) == (first.error_type, first.error)


def _stacks(result: GroupResult) -> list[str]:
    places = _places(result)
    if not places:
        return []
    lines = []
    odd = _odd(result)
    told = "the odd one out" if len(result.ranks) > 2 else "the other rank waits for it"
    for place, ranks in group_places(places):
        verb = "waits" if place is not None and place.waits_in else "is"
        verb = {"waits": "wait", "is": "are"}[verb] if len(ranks) > 1 else verb
        where = "at an unknown place: no stack was recorded" if place is None else str(place)
        if place is None and all(result.ranks[rank].suspended for rank in ranks):
            where = "suspended"
        mark = f"   <- {told}" if ranks == odd else ""
        lines.append(f"{name_ranks(ranks)} of {len(result.ranks)} {verb} {where}{mark}")
    for _, ranks in group_places(places):
        rank = result.ranks[ranks[0]]
        if rank.last_collective:
            lines.append(f"last collective of rank {rank.rank}: {rank.last_collective}")
        if rank.stack:
            lines += [f"stack of rank {rank.rank}:", _quote_start(without_ours(rank.stack), 40)]
    return lines


def _places(result: GroupResult) -> dict[int, Place | None]:
    return {
        rank.rank: place_of(rank.stack)
        for rank in result.ranks
        if rank.status == "hung" or (rank.status == "stopped" and rank.stack)
    }


def _absent(result: GroupResult) -> Place | None:
    """The line of their own code that the odd ranks run while others wait; None for none."""
    places = _places(result)
    found = {places.get(rank) for rank in _odd(result)}
    place = found.pop() if len(found) == 1 else None
    others = any(each is not None and each.waits_in for each in places.values())
    return place if place is not None and not place.waits_in and others else None


def _missed(result: GroupResult, odd: list[int]) -> str:
    """The collective that these ranks did not call, by its number in torch if that is known."""
    numbered = (result.missed[rank] for rank in odd if rank < len(result.missed))
    waits = (each.waits_in for each in _places(result).values() if each is not None)
    return next(filter(None, (*numbered, *waits)))


def _odd(result: GroupResult) -> list[int]:
    # No rank is to blame for a problem of the launcher, and only one that failed for what follows.
    if result.problem or result.first_failed is not None:
        return []
    finished = [rank.rank for rank in result.ranks if rank.status == "ok"]
    return odd_ranks(_places(result), finished)


def _quote(text: str, lines: int) -> str:
    kept = text.strip("\n").splitlines()
    cut = [f"... {len(kept) - lines} earlier lines"] if len(kept) > lines else []
    return "\n".join(_INDENT + line for line in [*cut, *kept[-lines:]])


def _quote_ends(text: str, first: int, last: int) -> str:
    """The indented start and end of a traceback: where the program's own lines are, and the error.

    Between them may be many frames of a framework.
    """
    kept = text.strip("\n").splitlines()
    if len(kept) > first + last:
        kept[first:-last] = [f"... {len(kept) - first - last} more lines"]
    return "\n".join(_INDENT + line for line in kept)


def _quote_start(text: str, lines: int) -> str:
    """The indented start of a stack, whose first lines are the innermost frames."""
    kept = text.strip("\n").splitlines()
    cut_off = [f"... {len(kept) - lines} more lines"] if len(kept) > lines else []
    return "\n".join(_INDENT + line for line in [*kept[:lines], *cut_off])
