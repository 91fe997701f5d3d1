"""Warns if a marked test passes without having used any Run.

The plugin calls `warn_if_unused` after each test that passed; the fixtures call `note` with the
Traces that a test receives.  A passing test must mean that something was compared.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pytest_trainsafe.errors import TrainsafeWarning

if TYPE_CHECKING:
    from pytest_trainsafe.runs.traces import Traces

_GIVEN: pytest.StashKey[list[Traces]] = pytest.StashKey()


def note(item: pytest.Item, traces: Traces) -> None:
    """Records that a test received these Traces."""
    item.stash.setdefault(_GIVEN, []).append(traces)


def given_traces(item: pytest.Item) -> list[Traces]:
    """The Traces that a test received."""
    return item.stash.get(_GIVEN, [])


def warn_if_unused(item: pytest.Item) -> None:
    """Warns if a marked test waited for no Run and therefore compared nothing."""
    from pytest_trainsafe.sweep.product import CELL_FIXTURE

    callspec = getattr(item, "callspec", None)
    names = set(getattr(item, "fixturenames", ()))
    if callspec is None or CELL_FIXTURE not in callspec.params or "torchrun_group" in names:
        return
    given = given_traces(item)
    # A test that uses only the fixture `trainsafe` need not request a Run.
    if any(each.runs.waited for each in given) or (not given and "trainsafe" in names):
        return
    item.warn(
        TrainsafeWarning(
            f"{item.name} has the trainsafe marker, but used no Run, so it could not fail; call "
            "assert_trainsafe(candidate_trace, reference_trace)"
        )
    )
