"""A planted fault is located, although every tensor computed after it is wrong too."""

from __future__ import annotations

import pytest

from tests.support.localize.stack_program import FAULTS, train


@pytest.mark.trainsafe(train, tp=2, dp=2, bug=list(FAULTS), dtype=["float64"])
def test_a_planted_fault_is_located(trainsafe, search):
    bug = str(trainsafe.point.get("bug", ""))
    found = search()
    _, faults = found.judge(found.rewritten())
    assert [(fault.phase, fault.target) for fault in faults] == [FAULTS[bug]]
