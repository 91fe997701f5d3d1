"""A fault is located where micro-batches have different numbers of rows."""

from __future__ import annotations

import pytest

from tests.support.localize.stack_program import train


@pytest.mark.trainsafe(
    train, tp=2, dp=2, bug=["divisor", "backward", ""], args={"last": 2}, dtype=["float64"]
)
def test_a_fault_in_a_smaller_micro_batch_is_located_and_a_correct_program_has_none(
    trainsafe, search
):
    bug = str(trainsafe.point.get("bug", ""))
    found = search()
    _, faults = found.judge(found.rewritten())
    located = {
        "divisor": [("backward", "<program>"), ("loss", "<program>")],
        "backward": [("backward", "blocks.1.up")],
        "": [],
    }
    assert [(fault.phase, fault.target) for fault in faults] == located[bug]
