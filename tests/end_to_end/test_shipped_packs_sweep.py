"""The reference programs keep the packs of the package at every Point of a sweep."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_trainsafe import assert_invariants
from pytest_trainsafe.reference_models import cnn, gpt, llama, lstm, moe

pytestmark = pytest.mark.slow


def kept(candidate: Any, *more: str) -> None:
    """Check what applies at the candidate's Point."""
    sizes = candidate.case.point.sizes
    packs = ["pytorch", "amp", *more]
    if sizes.get("dp", 1) > 1:
        packs.append("ddp")
    if sizes.get("tp", 1) > 1:
        packs.append("tensor_parallel")
    assert_invariants(candidate, *packs)


@pytest.mark.trainsafe(gpt.train, dp=[1, 2], tp=[1, 2], sp=[False, True], dtype="bfloat16")
def test_gpt(candidate_trace: Any) -> None:
    kept(candidate_trace)


@pytest.mark.trainsafe(gpt.train, pp=2, cp=[1, 2], dtype="float32")
def test_gpt_in_stages_and_with_a_cut_sequence(candidate_trace: Any) -> None:
    kept(candidate_trace)


@pytest.mark.trainsafe(llama.train, dp=[1, 2], tp=[1, 2], dtype="bfloat16")
def test_llama(candidate_trace: Any) -> None:
    kept(candidate_trace)


@pytest.mark.trainsafe(moe.train, ep=[1, 2], dp=2, dtype="float32")
def test_moe_without_the_pack_of_replicas(candidate_trace: Any) -> None:
    assert_invariants(candidate_trace, "pytorch", "amp")


@pytest.mark.trainsafe(cnn.train, dp=[1, 2], dtype="float32")
def test_cnn(candidate_trace: Any) -> None:
    kept(candidate_trace)


@pytest.mark.trainsafe(lstm.train, dp=[1, 2], dtype="float32")
def test_lstm(candidate_trace: Any) -> None:
    kept(candidate_trace)
