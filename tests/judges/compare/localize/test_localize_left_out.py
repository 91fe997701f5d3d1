"""A wrapper that leaves an axis out is named before the loss, whose gradients look too large."""

from __future__ import annotations

import pytest

from pytest_trainsafe.core.point import Point
from pytest_trainsafe.judges.compare.compare import compare
from pytest_trainsafe.judges.compare.localize.code.lines import Place
from pytest_trainsafe.judges.compare.localize.gradients import loss_text, with_wrapper
from pytest_trainsafe.judges.compare.rung import RungTraces
from pytest_trainsafe.trace.facts import Reduction, Site
from pytest_trainsafe.trace.schema import NoteEvent
from tests.support.compare.traces import Bench, only
from tests.support.localize.blamed_traces import noting
from tests.support.localize.said import said

FSDP = Site("wrapper", "/me/fit.py:25", name="fully_shard")
AVERAGES = NoteEvent("averages", "fully_shard")
SUMMED = Reduction("all_reduce(SUM)", ("dp",), "/me/fit.py:33", "", 500)
LOSS = Place("/me/fit.py:30")


@pytest.fixture
def doubled(bench: Bench) -> RungTraces:
    """Gradients that are twice the reference's from the model's output on, at dp=2."""
    edit = only("activation_grad", "fc2.output", lambda record, at, part: part * 2)
    return bench.rung(Point.of(dp=2), edit, dtype="float64")


def test_the_wrapper_leads_if_no_call_reduces_over_the_axis_of_the_factor(
    doubled: RungTraces,
) -> None:
    candidate, comparison = noting(doubled, FSDP, AVERAGES).candidate, compare(doubled)
    source, what = said(with_wrapper(candidate, comparison, LOSS))
    assert source == "/me/fit.py:25"
    assert what == (
        "fully_shard is applied here, and no call reduces gradients over dp; or the loss is wrong: "
        "it is made at /me/fit.py:30"
    )
    text = loss_text("train", "", candidate, comparison)
    assert text.endswith(". Or fully_shard has to reduce the gradients over dp too: no call does")


@pytest.mark.parametrize("more", [(FSDP, SUMMED), (SUMMED,), ()])
def test_the_loss_is_named_alone_without_a_wrapper_or_if_a_call_reduces_over_the_axis(
    doubled: RungTraces, more: tuple[Site | Reduction, ...]
) -> None:
    candidate, comparison = noting(doubled, AVERAGES, *more).candidate, compare(doubled)
    assert with_wrapper(candidate, comparison, LOSS) == LOSS
    if SUMMED in more:
        assert "has to reduce" not in loss_text("train", "", candidate, comparison)
