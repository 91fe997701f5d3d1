"""A line that scales a part of a gradient is named if no call reduces this gradient."""

from __future__ import annotations

import pytest
import torch

from pytest_trainsafe.core.point import Point
from pytest_trainsafe.judges.compare.compare import compare
from pytest_trainsafe.judges.compare.localize.code.places import Places
from pytest_trainsafe.judges.compare.rung import RungTraces
from pytest_trainsafe.trace.facts import CollectiveEvent, Reduction, Site
from tests.support.compare.clipped_traces import rung
from tests.support.compare.traces import Record, only
from tests.support.localize.blamed_traces import PROGRAM, noting

REDUCED = Reduction("all_reduce(SUM)", ("dp",), "/me/grads.py:10", "", 16)
SCALES = Site("write", "/me/fit.py:36", name="mul_", factor=0.5)


@pytest.fixture(scope="module")
def wrong(tmp_path_factory: pytest.TempPathFactory) -> RungTraces:
    """A bias of 16 elements, of whose gradient the third row is wrong."""

    def part(record: Record, at: dict[str, int], value: torch.Tensor) -> torch.Tensor:
        changed = value.clone()
        changed[2] *= 0.5
        return changed

    folder = tmp_path_factory.mktemp("part")
    return rung(folder, Point.of(dp=2), only("main_grad", "fc1.bias", part), limit=0)


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ("norm.weight.grad", SCALES.at),
        ("fc1.bias.grad", REDUCED.site),  # the call that reduces this gradient may be wrong
        ("", REDUCED.site),  # a copy or a bucket may hold any gradient
    ],
)
def test_the_line_that_scales_a_part_is_named_unless_a_call_may_reduce_the_gradient(
    wrong: RungTraces, given: str, line: str
) -> None:
    call = CollectiveEvent("all_reduce", (0, 1), REDUCED.site, step=0, shape=(16,), name=given)
    noted = noting(wrong, REDUCED, call, SCALES)
    places = Places(noted.candidate, PROGRAM, wrong.reference)
    assert places.of_phase("reduction", compare(noted), ["fc1.bias"]).source == line
