"""Initial values that ranks hold at wrong places are not advised to be replaced by others."""

from __future__ import annotations

import torch

from pytest_trainsafe.core.point import Point
from pytest_trainsafe.core.tensor_id import INITIAL
from pytest_trainsafe.judges.compare.compare import compare
from tests.support.compare.traces import Bench, Record, draw, only


def swapped(record: Record, at: dict[str, int], part: torch.Tensor) -> torch.Tensor:
    """The part of the other rank."""
    return record.tensor.chunk(2, dim=0)[1 - at["tp"]].to(part.dtype).clone()


def others(record: Record, at: dict[str, int], part: torch.Tensor) -> torch.Tensor:
    return draw(f"other {at['tp']}", tuple(part.shape)).to(part.dtype)


def test_ctx_initialize_is_advised_only_for_other_values(bench: Bench) -> None:
    for edit, advised in ((swapped, False), (others, True)):
        wrong = only("param", "fc1.weight", edit, step=INITIAL)
        comparison = compare(bench.rung(Point.of(tp=2), wrong, dtype="float64"))
        lead = next(each for each in comparison.findings if each.verdict == "fail")
        assert ("ctx.initialize(model)" in lead.message) == advised
        assert ("The values are the reference's, at other places" in lead.message) != advised
