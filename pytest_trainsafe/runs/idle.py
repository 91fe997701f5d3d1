"""Warns of a marked test that passes without having looked at any Run.

Called by the plugin after each test that passed, and told by the fixtures of the Traces that
they give it.  A green test must mean that something was compared.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pytest_trainsafe.errors import TrainsafeWarning

if TYPE_CHECKING:
    from pytest_trainsafe.runs.traces import Traces

_GIVEN: pytest.StashKey[list[Traces]] = pytest.StashKey()


def note(item: pytest.Item, traces: Traces) -> None:
    """A test is given these Traces."""
    item.stash.setdefault(_GIVEN, []).append(traces)


def warn_if_idle(item: pytest.Item) -> None:
    """Warn where a swept test asked for no Run, and so could not have failed."""
    from pytest_trainsafe.sweep.product import CELL_FIXTURE

    callspec = getattr(item, "callspec", None)
    names = set(getattr(item, "fixturenames", ()))
    if callspec is None or CELL_FIXTURE not in callspec.params or "torchrun_group" in names:
        return
    given = item.stash.get(_GIVEN, [])
    # With its Point alone a test may do as it likes.
    if any(each.runs.waited for each in given) or (not given and "trainsafe" in names):
        return
    item.warn(
        TrainsafeWarning(
            f"{item.name} is marked trainsafe and looked at no Run, so it could not fail; "
            "call assert_trainsafe(candidate_trace, reference_trace)"
        )
    )
