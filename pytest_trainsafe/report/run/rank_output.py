"""Adds what the ranks of a test printed to the test's report, as pytest adds its own captures.

Called by the plugin for each test that ran.  The sections' titles begin as those of pytest, so
`--show-capture`, `-rP` and `--junitxml` treat them alike.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_trainsafe.core.usage import name_ranks
from pytest_trainsafe.launch.console.console import current
from pytest_trainsafe.printable import printable

if TYPE_CHECKING:
    from pytest_trainsafe.launch import GroupResult

#: The most ranks of a group whose output a report has.
MAX_RANKS = 8

#: Where all of an output is, if its file is removed when the test ends.
_REMOVED = "--trainsafe-keep-traces DIR keeps all of it"


#: The sections of a test, until its teardown.
_SECTIONS: pytest.StashKey[list[tuple[str, str]]] = pytest.StashKey()


@dataclass(frozen=True, slots=True)
class _Group:
    """A group of ranks whose output is shown: the folder with its files, and its ranks.

    `failed` lists the ranks at fault.  `tracebacks` has the tracebacks that the report has
    already, by rank.  `kept` is whether the files outlast the test.
    """

    folder: Path
    ranks: int
    kept: bool
    failed: tuple[int, ...] = ()
    tracebacks: Mapping[int, str] = field(default_factory=dict)


def add_output(item: pytest.Item, call: pytest.CallInfo[Any], report: pytest.TestReport) -> None:
    """Adds a section for each stream to which a rank wrote, to the reports of call and teardown.

    The group of ranks is the one that failed, if the test ended with its failure.  Otherwise it is
    that of the candidate's last Run, or the last group that the test ran with `torchrun_group`.
    """
    if current() is not None:  # the user has seen it
        return
    if report.when == "call":
        sections = [section for group in _groups(item, call) for section in _sections(group)]
        item.stash[_SECTIONS] = sections
        report.sections.extend(sections)
    elif report.when == "teardown":
        # JUnit files are made from this report, and have no titles.
        for title, text in item.stash.get(_SECTIONS, ()):
            report.sections.append((title, f"{title.partition(', ')[2]}:\n{text}"))


def shows_output(config: pytest.Config, stream: str) -> bool:
    """Whether the report of a failed test shows what ranks wrote to "stdout" or "stderr"."""
    return current() is None and config.getoption("showcapture") in ("all", stream)


def is_of_rank(title: str) -> bool:
    """Whether a section of a report has this title because ranks wrote it."""
    return title.startswith("Captured ") and ", rank " in title


def _groups(item: pytest.Item, call: pytest.CallInfo[Any]) -> list[_Group]:
    from pytest_trainsafe.launch.failure import GroupFailure
    from pytest_trainsafe.runs.group import GROUP
    from pytest_trainsafe.runs.unused_traces import given_traces

    error = call.excinfo.value if call.excinfo is not None else None
    if isinstance(error, GroupFailure):
        return [] if error.told_by else [_of_result(error.result)]
    groups = []
    for traces in given_traces(item):
        run = traces.runs.last
        if traces.role == "candidate" and run is not None and run.files is not None:
            kept = bool(traces.case.settings.keep_traces)
            groups.append(_Group(run.files, traces.case.point.world_size, kept))
    group = item.stash.get(GROUP, None)
    if group is not None and group.last is not None:
        groups.append(_of_result(group.last))
    return groups


def _of_result(result: GroupResult) -> _Group:
    failed = [rank.rank for rank in result.ranks if rank.status in ("raised", "died", "hung")]
    tracebacks = {rank.rank: rank.traceback for rank in result.ranks}
    return _Group(result.folder, len(result.ranks), True, tuple(failed), tracebacks)


def _sections(group: _Group) -> list[tuple[str, str]]:
    from pytest_trainsafe.launch.files import RankFiles
    from pytest_trainsafe.launch.output import read_ends

    note = "" if group.kept else _REMOVED
    found: dict[int, list[tuple[str, str]]] = {}
    unread = []
    for rank in sorted(range(group.ranks), key=lambda rank: rank not in group.failed):
        files = RankFiles(group.folder, rank)
        if len(found) == MAX_RANKS:
            unread += [rank] if any(map(_has_text, (files.stdout, files.stderr))) else []
            continue
        traceback = group.tracebacks.get(rank, "")
        for path, without in ((files.stdout, ""), (files.stderr, traceback)):
            if text := read_ends(path, note, without):
                title = f"Captured {path.stem}, rank {rank} of {group.ranks}"
                found.setdefault(rank, []).append((title, printable(text)))
    sections = [section for _, each in sorted(found.items()) for section in each]
    if unread:
        more = (
            f"{name_ranks(sorted(unread))} wrote output too; {note or f'it is in {group.folder}'}\n"
        )
        sections.append((f"Captured stdout, more ranks of {group.ranks}", printable(more)))
    return sections


def _has_text(path: Path) -> bool:
    try:
        return path.lstat().st_size > 0
    except OSError:
        return False
