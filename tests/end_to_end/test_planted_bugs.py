"""Each planted bug of the reference GPT is found where its entry says, and only where it acts."""

from __future__ import annotations

import pytest

from pytest_trainsafe import assert_trainsafe
from pytest_trainsafe.assertions import TrainsafeFailure
from pytest_trainsafe.reference_models import bugs, gpt

SAYS = {
    "tp-embedding-mask": "",
    "cp-loss-scaling": "the value is 2 times the reference, which is cp",
    "sp-layernorm-grads": "the ranks of tp hold partial sums: rank0 + rank1",
}


def planted(name, **axes):
    return pytest.mark.trainsafe(gpt.train, candidate_args={"bug": name}, **axes)


def judge(name, case, candidate, reference):
    """Expect a failure that tells the bug's story at Points that trigger it, a pass elsewhere."""
    bug = bugs.find(name)
    if not bug.triggers(case.point):
        assert_trainsafe(candidate, reference)
        return
    with pytest.raises(TrainsafeFailure) as failure:
        assert_trainsafe(candidate, reference)
    text = " ".join(str(failure.value).split())
    starts = f"{bug.module}.{bug.tensor} · {bug.kind} · step 0 · micro-batch 0 · float64"
    assert f"starts at {starts}" in text
    assert SAYS[name] in text
    assert "look at" in text


@planted("tp-embedding-mask", tp=[1, 2], cp=2)
def test_a_wrong_embedding_mask_starts_at_the_embedding(
    trainsafe, candidate_trace, reference_trace
):
    judge("tp-embedding-mask", trainsafe, candidate_trace, reference_trace)


@planted("cp-loss-scaling", cp=[1, 2], dp=2)
def test_a_wrong_loss_scale_starts_at_the_loss_and_is_scaled_by_cp(
    trainsafe, candidate_trace, reference_trace
):
    judge("cp-loss-scaling", trainsafe, candidate_trace, reference_trace)


@planted("sp-layernorm-grads", tp=2, sp=[False, True])
def test_unreduced_layer_norm_gradients_are_partial_sums(
    trainsafe, candidate_trace, reference_trace
):
    judge("sp-layernorm-grads", trainsafe, candidate_trace, reference_trace)
