"""pytest docs/examples/dropout, or from a copy of this folder: pytest"""

from __future__ import annotations

from typing import Any

import pytest

from pytest_trainsafe import TrainsafeFailure, assert_rng, expect_rng

from .train import train


@pytest.mark.trainsafe(train, dp=[2])
def test_every_rank_drops_for_itself(candidate_trace: Any) -> None:
    assert_rng(candidate_trace, expect=[expect_rng("drop", different="dp")])


@pytest.mark.trainsafe(train, dp=[2], args={"one_seed": True})
def test_one_seed_for_all_ranks_is_found(candidate_trace: Any) -> None:
    with pytest.raises(TrainsafeFailure, match="rng:dp_same_dropout"):
        assert_rng(candidate_trace)
