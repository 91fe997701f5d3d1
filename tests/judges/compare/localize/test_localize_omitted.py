"""A line of the reference that scales gradients is named if the candidate lacks its factor."""

from __future__ import annotations

import dataclasses

import pytest

from pytest_trainsafe.core.point import Point
from pytest_trainsafe.judges.compare.rung import RungTraces
from pytest_trainsafe.trace.facts import Reduction, Site
from tests.support.compare.clipped_traces import rung
from tests.support.compare.traces import only
from tests.support.localize.blamed_traces import located_faults, noting, text_of

BIAS = "fc1.bias"
SUM = Reduction("all_reduce(SUM)", ("dp",), "/me/fit.py:30", "", 16)
UNSCALES = Site("write", "/me/fit.py:36", name="div_", factor=1 / 1024)
OTHER = Site("write", "/me/fit.py:37", name="div_", factor=0.5)


@pytest.fixture(scope="module")
def wrong(tmp_path_factory: pytest.TempPathFactory) -> RungTraces:
    """A gradient that still has the factor of a loss scale."""
    folder = tmp_path_factory.mktemp("omitted")
    scaled = only("main_grad", BIAS, lambda record, at, part: part * 1024, step=0)
    return noting(rung(folder, Point.of(dp=2), scaled, limit=0), SUM)


def against(given: RungTraces, *theirs: Site) -> RungTraces:
    there = noting(dataclasses.replace(given, candidate=given.reference), *theirs).candidate
    return dataclasses.replace(given, reference=there)


def test_the_reference_s_line_is_named_and_not_the_reduction(wrong: RungTraces) -> None:
    found = located_faults(against(wrong, OTHER, UNSCALES))
    assert found.source == UNSCALES.at
    assert found.what.startswith("changes gradients by div_ in the reference alone")
    assert (
        "the gradients of fc1.bias lack a factor that a line of the reference gives them"
    ) in text_of(found)


@pytest.mark.parametrize("both", [True, False])
def test_a_line_of_both_or_of_another_factor_leaves_the_reduction_at_fault(
    wrong: RungTraces, both: bool
) -> None:
    given = noting(wrong, UNSCALES) if both else wrong
    found = located_faults(against(given, *([UNSCALES] if both else [OTHER])))
    assert found.source == SUM.site
    assert "the gradient reduction of fc1.bias is wrong" in text_of(found)
