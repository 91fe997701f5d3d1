"""A gradient of the previous step is found below clipping, which scales the sum of both."""

from __future__ import annotations

import pytest
import torch

from pytest_trainsafe.core.point import Point
from pytest_trainsafe.judges.compare.compare import compare
from tests.support.compare.traces import Bench, Record, draw, only

POINT = Point.of(tp=2, dp=2)


def left(shape: tuple[int, ...], name: str) -> torch.Tensor:
    """The gradient of the first step."""
    return sum((draw(f"grad 0 {i} {name}", shape) for i in range(4)), torch.zeros(shape))


@pytest.mark.parametrize(
    ("of_reference", "of_left", "of_other", "found"),
    [
        (0.75, 0.74, 0.0, True),
        (0.75, 0.0, 0.74, False),
        (0.75, 0.74, 0.1, False),
        (1.0, 0.5, 0.0, False),  # nothing scales the sum, so all of what was left would be in it
        (0.75, -0.74, 0.0, False),
    ],
)
def test_a_scaled_sum_of_the_gradients_of_two_steps_is_explained_as_uncleared(
    bench: Bench, of_reference: float, of_left: float, of_other: float, found: bool
) -> None:
    shape = (16, 8)
    wrong = of_left * left(shape, "fc1.weight") + of_other * draw("other", shape)

    def edit(record: Record, at: dict[str, int], part: torch.Tensor) -> torch.Tensor:
        return of_reference * part + wrong.chunk(2, dim=0)[at["tp"]].to(part.dtype)

    comparison = compare(bench.rung(POINT, only("main_grad", "fc1.weight", edit, step=1)))
    lead = next(each for each in comparison.findings if each.verdict == "fail")
    name = "" if lead.pattern is None else lead.pattern.name
    assert (name == "uncleared") == found
    if found:
        assert lead.pattern is not None
        assert lead.pattern.text == (
            "the value is 0.75 times the reference plus 0.74 times the gradient of the previous "
            "step"
        )
