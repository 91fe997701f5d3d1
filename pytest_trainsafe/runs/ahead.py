"""Look-ahead: the Runs of the next test train while the current test is judged.

Before each test, the plugin stores the next test.  The Runs of the next test are launched once all
Runs of the current test are launched.  A Run that is launched early must equal the Run that its own
test would launch.  Therefore a test's Runs are launched ahead only if each of its user fixtures has
session scope and is also a fixture of the current test.  The environment, the working directory and
the search path (`LaunchEnvironment`) are saved before the current test, passed to the ranks of the
Run, and compared when the Run's own test requests it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from pytest_trainsafe.launch.console.console import current
from pytest_trainsafe.launch.launch_environment import LaunchEnvironment
from pytest_trainsafe.sweep.product import CELL_FIXTURE, Cell

if TYPE_CHECKING:
    from pytest_trainsafe.sweep.case import Case

#: Fixtures of this plugin and of pytest that cannot affect a program.
HARMLESS = frozenset(
    {
        *(CELL_FIXTURE, "trainsafe", "candidate_trace", "reference_trace", "request"),
        *("tmp_path", "tmp_path_factory", "tmpdir", "tmpdir_factory", "cache", "pytestconfig"),
        *(
            "capsys",
            "capfd",
            "capsysbinary",
            "capfdbinary",
            "caplog",
            "recwarn",
            "doctest_namespace",
        ),
        *("record_property", "record_xml_attribute", "record_testsuite_property"),
    }
)


@dataclass(frozen=True, slots=True)
class NextTest:
    """The next test at its Point, and the environment in which its Runs are launched ahead.

    The environment is saved before the current test sets up its fixtures.
    """

    case: Case
    launch_environment: LaunchEnvironment


NEXT: pytest.StashKey[NextTest | None] = pytest.StashKey()


def look(item: pytest.Item, following: pytest.Item | None) -> None:
    """Stores the test after `item` in the stash if its Runs may be launched during `item`.

    No Runs are launched ahead if ranks write to the terminal, where their lines would be taken for
    those of `item`.
    """
    alone = current() is not None
    case = None if alone or following is None else _case(item, following)
    item.config.stash[NEXT] = NextTest(case, LaunchEnvironment.now()) if case is not None else None


def _case(item: pytest.Item, following: pytest.Item) -> Case | None:
    callspec = getattr(following, "callspec", None)
    cell = callspec.params.get(CELL_FIXTURE) if callspec else None
    names = getattr(following, "fixturenames", ())
    if not isinstance(cell, Cell) or cell.invalid or "candidate_trace" not in names:
        return None
    if _may_not_run(following):
        return None
    here = {*getattr(item, "fixturenames", ())}
    apart = [name for name in names if name not in HARMLESS]
    if any(name not in here or not _for_the_session(following, name) for name in apart):
        return None
    return cell.case


def _may_not_run(item: pytest.Item) -> bool:
    """Whether a mark may prevent the test from running; conditions of marks are not evaluated."""
    skips = any(True for name in ("skip", "skipif") for _ in item.iter_markers(name))
    return skips or any(not mark.kwargs.get("run", True) for mark in item.iter_markers("xfail"))


def _for_the_session(item: pytest.Item, name: str) -> bool:
    """Whether every definition of the fixture has session scope."""
    info = getattr(item, "_fixtureinfo", None)  # pytest has no public API for this
    found = info.name2fixturedefs.get(name, ()) if info is not None else ()
    return bool(found) and all(each.scope == "session" for each in found)
