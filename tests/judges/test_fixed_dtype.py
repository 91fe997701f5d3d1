"""Ranks that disagree on a dtype in a rung that is not the program's own get advice."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_trainsafe.judges.compare.ladder.fixed_dtype import with_dtype_advice
from pytest_trainsafe.launch import GroupFailure
from pytest_trainsafe.launch.result import GroupResult

COLLECTIVE = "collective mismatch: collective 3 of the group of ranks [0, 1] differs (dtype): "
DTYPES = "rank 0 broadcast of 2x8 float64 at a.py:3; rank 1 broadcast of 2x8 float32 at a.py:4"
SENT = "send 1 from rank 0 to rank 1 does not fit its recv: "


def failure(mismatch: str) -> GroupFailure:
    result = GroupResult(
        task="t", folder=Path("/f"), ranks=(), seconds=1.0, timeout=9.0, mismatches=(mismatch,)
    )
    return GroupFailure(result, "the candidate at tp=2")


@pytest.mark.parametrize("start", [COLLECTIVE, f"collective mismatch: {SENT}"])
def test_a_fixed_dtype_is_named_with_the_option_that_helps(start: str) -> None:
    text = str(with_dtype_advice(failure(start + DTYPES), "float64", "float32"))
    assert "the program probably fixes float32 for a tensor" in text
    assert "Use ctx.dtype, or judge the program in float32 alone, with --trainsafe-dtype" in text
    assert "this was the candidate at tp=2" in text


@pytest.mark.parametrize(
    ("mismatch", "dtype", "own"),
    [
        (COLLECTIVE + DTYPES, "float64", "float64"),
        (COLLECTIVE + DTYPES.replace("float32", "float64"), "float64", "float32"),
        (COLLECTIVE + DTYPES.replace("float32", "int64"), "float64", "float32"),
        (COLLECTIVE + DTYPES, "bfloat16", "float16"),
        ("collective 1 is made by rank 0 but not by rank 1", "float64", "float32"),
    ],
    ids=["own dtype", "one dtype", "integers", "neither is the rung's", "another mismatch"],
)
def test_other_disagreements_keep_their_message(mismatch: str, dtype: str, own: str) -> None:
    given = failure(mismatch)
    assert with_dtype_advice(given, dtype, own) is given
