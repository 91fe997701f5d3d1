"""A line that scales gradients between two backwards of a step is blamed for wrong weights.

It is the line, and not the reduction or the wrapper, if the sum weighs micro-batches wrongly.
"""

from __future__ import annotations

import dataclasses

import pytest
import torch

from pytest_trainsafe.core.point import Point
from pytest_trainsafe.judges.compare.rung import RungTraces
from pytest_trainsafe.trace.facts import Site
from tests.support.compare.clipped_traces import rung
from tests.support.compare.traces import Record, only, training
from tests.support.localize.blamed_traces import located_faults, noting, text_of

BIAS = "fc1.bias"
DDP = Site("wrapper", "/me/fit.py:25", name="DistributedDataParallel")
EARLY = Site("early", "/me/fit.py:33", name="_foreach_mul_")
CLIP = Site("write", "/me/fit.py:38", name="_foreach_mul_")


def reweighted(record: Record, at: dict[str, int], part: torch.Tensor) -> torch.Tensor:
    """The gradient as if its first micro-batch had been clipped before the next one was added."""
    [first] = [
        each.tensor
        for each in training(steps=1)
        if (each.id.kind, each.id.path, each.id.microbatch) == ("param_grad", BIAS, 0)
    ]
    return part - 0.6 * first.to(part.dtype)


@pytest.fixture(scope="module")
def wrong(tmp_path_factory: pytest.TempPathFactory) -> RungTraces:
    folder = tmp_path_factory.mktemp("early")
    return rung(folder, Point.of(dp=2), only("main_grad", BIAS, reweighted, step=0), limit=0)


def test_a_line_that_scales_between_two_backwards_is_at_fault_and_not_the_wrapper(
    wrong: RungTraces,
) -> None:
    found = located_faults(noting(wrong, DDP, CLIP, EARLY))
    assert found.source == EARLY.at
    assert found.what.startswith(
        "changes gradients by _foreach_mul_ between two backwards of a step"
    )
    assert (
        "the gradients of fc1.bias are changed between their backward and the optimizer's step"
    ) in text_of(found)


@pytest.mark.parametrize("both", [True, False])
def test_a_line_after_all_backwards_or_of_the_reference_too_is_not_blamed_for_weights(
    wrong: RungTraces, both: bool
) -> None:
    given = noting(wrong, DDP, CLIP)
    if both:
        there = noting(dataclasses.replace(wrong, candidate=wrong.reference), EARLY).candidate
        given = dataclasses.replace(noting(given, EARLY), reference=there)
    assert located_faults(given).source == DDP.at


def test_a_gradient_that_is_wrong_otherwise_is_not_blamed_on_such_a_line(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    folder = tmp_path_factory.mktemp("double")
    double = only("main_grad", BIAS, lambda record, at, part: part * 2, step=0)
    found = located_faults(noting(rung(folder, Point.of(dp=2), double, limit=0), DDP, EARLY))
    assert found.source == DDP.at
