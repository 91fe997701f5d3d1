"""A call that reduces over an axis is not told as the reduction of what lacks a sum over it."""

from __future__ import annotations

from pathlib import Path

import torch

from pytest_trainsafe.core.point import Point
from pytest_trainsafe.judges.compare.compare import compare
from pytest_trainsafe.judges.compare.localize.code.places import Places
from pytest_trainsafe.trace.facts import Reduction
from tests.support.compare.clipped_traces import rung
from tests.support.compare.traces import Record, draw, only
from tests.support.localize.blamed_traces import PROGRAM, noting

BUCKET = Reduction("all_reduce(SUM)", ("dp",), "/me/buckets.py:8", "", 500)
OTHER = Reduction("all_reduce(SUM)", ("tp",), "/me/buckets.py:9", "", 500)


def test_a_bucket_over_the_axis_of_the_missing_sum_is_not_listed(tmp_path: Path) -> None:
    """A bucket may hold any gradient, but not one of which the ranks still hold terms."""

    def term(record: Record, at: dict[str, int], part: torch.Tensor) -> torch.Tensor:
        own = draw("term", tuple(part.shape)).to(part.dtype)
        return own if at["dp"] else part - own

    edit = only("main_grad", "fc1.bias", term)
    wrong = rung(tmp_path, Point.of(dp=2), edit, limit=0)
    places = Places(noting(wrong, BUCKET, OTHER).candidate, PROGRAM)
    assert places.listed("reduction", ["fc1.bias"]) == [BUCKET, OTHER]
    assert places.listed("reduction", ["fc1.bias"], compare(wrong)) == [OTHER]
