"""An update that differs by a multiple of its parameter is explained by its weight decay."""

from __future__ import annotations

import pytest
import torch

from pytest_trainsafe.core.point import Point
from pytest_trainsafe.judges.compare.compare import compare
from tests.support.compare.traces import Bench, Record, only

POINT = Point.of(tp=2, dp=2)


@pytest.mark.parametrize(
    ("rate", "said", "cause"),
    [
        (-0.01, "by -0.01 times the parameter", "weight decay is applied twice or is too large"),
        (0.01, "by 0.01 times the parameter", "weight decay is left out or too small"),
    ],
)
def test_a_decay_after_the_step_is_named_with_its_factor(
    bench: Bench, rate: float, said: str, cause: str
) -> None:
    def decay(record: Record, at: dict[str, int], part: torch.Tensor) -> torch.Tensor:
        return part * (1 + rate)

    found = compare(bench.rung(POINT, only("param", "fc1.weight", decay, step=0), dtype="float64"))
    lead = next(each for each in found.findings if each.verdict == "fail")

    assert lead.where is not None
    assert lead.where.kind == "update"
    assert lead.pattern is not None
    assert (lead.pattern.name, lead.pattern.cause) == ("decay", cause)
    assert lead.pattern.text.endswith(said)


def test_a_step_in_another_direction_is_not_called_a_decay(bench: Bench) -> None:
    def turn(record: Record, at: dict[str, int], part: torch.Tensor) -> torch.Tensor:
        return part + 0.01 * part.flip(0)

    found = compare(bench.rung(POINT, only("param", "fc1.weight", turn, step=0), dtype="float64"))
    lead = next(each for each in found.findings if each.verdict == "fail")

    assert lead.pattern is None or lead.pattern.name != "decay"
