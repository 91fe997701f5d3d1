"""A correct program with awkward numerics is neither accused nor waved through.

`benchmarks/bench_adversarial.py` has all variants, Points and dtypes; here are the nearest ones.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from pytest_trainsafe import TrainsafeFailure, assert_trainsafe

# Appended: the benchmarks' modules must hide nobody else's.
sys.path.append(str(Path(__file__).resolve().parents[2] / "benchmarks"))

from adversarial_program import VARIANTS, train

RANKS = {"dp": 2, "tp": 2}


@pytest.mark.trainsafe(train, **RANKS, dtype="float64", seed=4, args=VARIANTS["0-dim gain"])
def test_a_parameter_without_dimensions_is_not_accused(candidate_trace, reference_trace):
    assert_trainsafe(candidate_trace, reference_trace)


@pytest.mark.trainsafe(train, **RANKS, dtype="bfloat16", args=VARIANTS["lr 1e4"])
def test_a_huge_learning_rate_is_not_accused(candidate_trace, reference_trace):
    assert_trainsafe(candidate_trace, reference_trace)


@pytest.mark.trainsafe(train, **RANKS, dtype="bfloat16", args=VARIANTS["log|h|"])
def test_a_logarithm_near_its_pole_is_not_accused(candidate_trace, reference_trace):
    assert_trainsafe(candidate_trace, reference_trace)


@pytest.mark.trainsafe(
    train,
    **RANKS,
    dtype="float32",
    args=VARIANTS["width 1"],
    accept=["coverage", "sensitive"],  # one element leaves little to compare
)
def test_a_width_of_one_is_not_accused(candidate_trace, reference_trace):
    assert_trainsafe(candidate_trace, reference_trace)


@pytest.mark.trainsafe(train, **RANKS, dtype="float64", args=VARIANTS["all parameters zero"])
def test_parameters_that_are_all_zero_are_no_pass(candidate_trace, reference_trace):
    with pytest.raises(TrainsafeFailure, match="inconclusive"):
        assert_trainsafe(candidate_trace, reference_trace)
