"""Gradients that a line scales once more after the clipping: the report names this line.

The norm agrees, so the collective that sums it is not at fault.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch

from pytest_trainsafe.core.point import Point
from pytest_trainsafe.judges.compare.compare import compare
from pytest_trainsafe.judges.compare.explain.common_factor import with_factor
from pytest_trainsafe.judges.compare.localize.code.places import Places
from pytest_trainsafe.judges.compare.rung import RungTraces
from pytest_trainsafe.trace.facts import Reduction, Site
from tests.support.compare.clipped_traces import both, rung
from tests.support.compare.traces import Record, only
from tests.support.localize.blamed_traces import PROGRAM, noting

NORM = Reduction("all_reduce(SUM)", ("dp",), "/me/fit.py:5", "", 1, "norm")
CLIPS = Site("write", "/me/fit.py:82", name="mul_", factor=0.25)
AGAIN = Site("write", "/me/fit.py:86", name="mul_", factor=0.25)
OTHER = Site("write", "/me/fit.py:86", name="mul_", factor=0.5)
#: What clips in the reference: rounding changes the norm, and so the number.
THEIRS = Site("write", "/me/fit.py:82", name="mul_", factor=0.25 * (1 + 1e-12))


def scaled(record: Record, at: dict[str, int], part: torch.Tensor) -> torch.Tensor:
    return part * 0.25


@pytest.fixture(scope="module")
def wrong(tmp_path_factory: pytest.TempPathFactory) -> RungTraces:
    """One of the clipped gradients is a quarter of the reference's; the norm is right."""
    return rung(
        tmp_path_factory.mktemp("again"), Point.of(dp=2), only("main_grad", "fc1.bias", scaled)
    )


def place(given: RungTraces, *lines: Site) -> str:
    noted = noting(given, NORM, *lines)
    reference = noting(dataclasses.replace(given, candidate=given.reference), THEIRS).candidate
    comparison = with_factor(noted, compare(noted))
    return Places(noted.candidate, PROGRAM, reference).of_phase("norm", comparison).source


def test_the_line_that_scales_by_the_factor_of_the_error_is_named(wrong: RungTraces) -> None:
    assert place(wrong, CLIPS, AGAIN) == AGAIN.at


def test_a_line_that_scales_by_another_factor_or_as_the_reference_is_not_named(
    wrong: RungTraces,
) -> None:
    assert place(wrong, CLIPS, OTHER) == NORM.site
    assert place(wrong, CLIPS) == NORM.site


def test_no_line_is_named_if_the_norm_is_wrong_by_another_factor(tmp_path: Path) -> None:
    """The gradients then follow from the norm."""
    norm = only("grad_norm", "grad_norm", lambda record, at, part: part * 3)
    found = rung(tmp_path, Point.of(dp=2), both(norm, only("main_grad", "fc1.bias", scaled)))
    assert place(found, CLIPS, AGAIN) == NORM.site
