"""An update whose parameter is rounded after the step is explained by the parameter's values."""

from __future__ import annotations

import torch

from pytest_trainsafe.core.point import Point
from pytest_trainsafe.judges.compare.compare import compare
from tests.support.compare.traces import Bench, Record, only

POINT = Point.of(tp=2, dp=2)


def test_an_update_to_values_of_a_narrower_dtype_is_explained_by_them(bench: Bench) -> None:
    """Its own values are differences, which fit no narrower dtype."""

    def cast(record: Record, at: dict[str, int], part: torch.Tensor) -> torch.Tensor:
        return part.to(torch.bfloat16).to(part.dtype)

    found = compare(bench.rung(POINT, only("param", "fc1.weight", cast, step=0), dtype="float64"))
    lead = next(each for each in found.findings if each.verdict == "fail")

    assert lead.where is not None
    assert lead.where.kind == "update"
    assert lead.pattern is not None
    assert lead.pattern.short == "rounded to bfloat16"
    assert "every value of the parameter after the step fits bfloat16 exactly" in lead.pattern.text
