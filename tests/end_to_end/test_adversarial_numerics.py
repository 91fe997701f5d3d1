"""Correct programs with unusual numerics pass, or are inconclusive where no error could show.

`benchmarks/bench_adversarial.py` has all variants, Points and dtypes; here are some of them.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from pytest_trainsafe import TrainsafeFailure, assert_trainsafe

# Appended, so that modules of the benchmarks do not shadow other modules.
sys.path.append(str(Path(__file__).resolve().parents[2] / "benchmarks"))

from adversarial_program import VARIANTS, train

RANKS = {"dp": 2, "tp": 2}


@pytest.mark.trainsafe(train, **RANKS, dtype="float64", seed=4, args=VARIANTS["0-dim gain"])
def test_a_model_with_a_zero_dimensional_parameter_passes(candidate_trace, reference_trace):
    assert_trainsafe(candidate_trace, reference_trace)


@pytest.mark.trainsafe(train, **RANKS, dtype="bfloat16", args=VARIANTS["lr 1e4"])
def test_a_huge_learning_rate_passes(candidate_trace, reference_trace):
    assert_trainsafe(candidate_trace, reference_trace)


@pytest.mark.trainsafe(train, **RANKS, dtype="bfloat16", args=VARIANTS["log|h|"])
def test_a_logarithm_near_its_pole_passes(candidate_trace, reference_trace):
    assert_trainsafe(candidate_trace, reference_trace)


@pytest.mark.trainsafe(
    train,
    **RANKS,
    dtype="float32",
    args=VARIANTS["width 1"],
    accept=["coverage", "sensitive"],  # one element leaves little to compare
)
def test_a_model_of_width_one_passes(candidate_trace, reference_trace):
    assert_trainsafe(candidate_trace, reference_trace)


@pytest.mark.trainsafe(train, **RANKS, dtype="float64", args=VARIANTS["all parameters zero"])
def test_a_model_whose_parameters_are_all_zero_is_inconclusive(candidate_trace, reference_trace):
    with pytest.raises(TrainsafeFailure, match="inconclusive"):
        assert_trainsafe(candidate_trace, reference_trace)
