"""Warns of a marked test that passes without having looked at any Run.

Called by the plugin after each test that passed.  A green test must mean that something was
compared.
"""

from __future__ import annotations

import pytest

from pytest_trainsafe.sweep.product import CELL_FIXTURE

TRACES = ("candidate_trace", "reference_trace")


def warn_if_idle(item: pytest.Item) -> None:
    """Warn where a swept test asked for no Run, and so could not have failed."""
    callspec = getattr(item, "callspec", None)
    names = set(getattr(item, "fixturenames", ()))
    if callspec is None or CELL_FIXTURE not in callspec.params or "torchrun_group" in names:
        return
    given = getattr(item, "funcargs", {})
    traces = [given[name] for name in TRACES if name in given]
    # With its Point alone a test may do as it likes.
    if any(each.looked_at for each in traces) or (not traces and "trainsafe" in names):
        return
    item.warn(
        pytest.PytestWarning(
            f"{item.name} is marked trainsafe and looked at no Run, so it could not fail; "
            "call assert_trainsafe(candidate_trace, reference_trace)"
        )
    )
