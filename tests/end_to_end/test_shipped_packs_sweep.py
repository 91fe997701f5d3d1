"""The reference programs satisfy the shipped packs at every Point of a sweep."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_trainsafe import assert_invariants
from pytest_trainsafe.reference_models import cnn, gpt, llama, lstm, moe

pytestmark = pytest.mark.slow


def check_packs(candidate: Any, *more: str) -> None:
    """Check the packs that apply at the candidate's Point."""
    sizes = candidate.case.point.sizes
    packs = ["pytorch", "amp", *more]
    if sizes.get("dp", 1) > 1:
        packs.append("ddp")
    if sizes.get("tp", 1) > 1:
        packs.append("tensor_parallel")
    assert_invariants(candidate, *packs)


@pytest.mark.trainsafe(gpt.train, dp=[1, 2], tp=[1, 2], sp=[False, True], dtype="bfloat16")
def test_the_gpt_with_dp_tp_and_sp_satisfies_the_packs(candidate_trace: Any) -> None:
    check_packs(candidate_trace)


@pytest.mark.trainsafe(gpt.train, pp=2, cp=[1, 2], dtype="float32")
def test_the_gpt_with_pp_and_cp_satisfies_the_packs(candidate_trace: Any) -> None:
    check_packs(candidate_trace)


@pytest.mark.trainsafe(llama.train, dp=[1, 2], tp=[1, 2], dtype="bfloat16")
def test_the_llama_with_dp_and_tp_satisfies_the_packs(candidate_trace: Any) -> None:
    check_packs(candidate_trace)


@pytest.mark.trainsafe(moe.train, ep=[1, 2], dp=2, dtype="float32")
def test_the_moe_with_ep_and_dp_satisfies_the_pytorch_and_amp_packs(candidate_trace: Any) -> None:
    assert_invariants(candidate_trace, "pytorch", "amp")


@pytest.mark.trainsafe(cnn.train, dp=[1, 2], dtype="float32")
def test_the_cnn_with_dp_satisfies_the_packs(candidate_trace: Any) -> None:
    check_packs(candidate_trace)


@pytest.mark.trainsafe(lstm.train, dp=[1, 2], dtype="float32")
def test_the_lstm_with_dp_satisfies_the_packs(candidate_trace: Any) -> None:
    check_packs(candidate_trace)
