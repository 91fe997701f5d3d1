"""The bug that BLOOM-176B was trained with: BF16_Optimizer clips on one tp rank only.

DeepSpeed #1801; Workshop et al. 2022.  The bug acts on parameters that tp replicates: layer norms,
position embeddings, biases of row-parallel layers.
"""

from __future__ import annotations

import pytest

from pytest_trainsafe import assert_trainsafe
from pytest_trainsafe.assertions import TrainsafeFailure
from pytest_trainsafe.reference_models.deepspeed_bugs.programs import tensor_parallel

pytest.importorskip("deepspeed")

NORM = "decoder.final_layernorm"
NORMS = ("decoder.layers.0.input_layernorm", "decoder.layers.0.pre_mlp_layernorm")

#: The parameters that every tp rank holds whole.
REPLICATED = {
    "embedding.position_embeddings.weight",
    *(f"{norm}.{name}" for norm in (*NORMS, NORM) for name in ("weight", "bias")),
    "decoder.layers.0.self_attention.linear_proj.bias",
    "decoder.layers.0.mlp.linear_fc2.bias",
}


def bloom(clip):
    return pytest.mark.trainsafe(
        tensor_parallel.train,
        tp=2,
        dtype="bfloat16",
        clip=clip,
        args={"steps": 1},
        candidate_args={"bug": "ds-1801"},
    )


@pytest.mark.slow
@bloom(clip=True)
def test_the_report_of_one_clipped_step_names_the_cause(candidate_trace, reference_trace):
    with pytest.raises(TrainsafeFailure) as failure:
        assert_trainsafe(candidate_trace, reference_trace)
    text = " ".join(str(failure.value).split())
    assert "starts at embedding.position_embeddings.weight · param · step 0 · bfloat16" in text
    assert "replicas over tp differ: rank 1 from rank 0" in text
    assert "tp ranks 0 and 1 had the same gradient after its reduction" in text
    assert "scaled down on tp rank 0 only: clipping acts on this rank" in text
    assert "18 of 18 main gradients" in text


@pytest.mark.slow
@bloom(clip=False)
def test_the_bug_is_silent_without_clipping(candidate_trace, reference_trace):
    assert_trainsafe(candidate_trace, reference_trace)


@pytest.mark.slow
@bloom(clip=True)
def test_the_replica_check_and_the_tolerances_each_find_the_bug(candidate_trace, reference_trace):
    """The replica check compares the two ranks, tolerances compare each rank to the reference."""
    from pytest_trainsafe.align.logical import parts_of
    from pytest_trainsafe.align.merge import merge
    from pytest_trainsafe.judges.compare.compare import compare
    from pytest_trainsafe.judges.compare.ladder.runs import make_rung
    from pytest_trainsafe.judges.compare.tensors.tensor import judge_tensor
    from pytest_trainsafe.judges.compare.tolerance.reference_tolerances import ReferenceTolerances

    rung = make_rung("bfloat16", candidate_trace, reference_trace, shadowed=True)
    found = compare(rung)
    failed = [finding for finding in found.findings if finding.verdict == "fail"]
    assert failed
    assert {finding.check for finding in failed} == {"replicas"}
    odd = {finding.where for finding in failed if finding.where is not None}
    assert all(finding.where is not None for finding in failed)
    assert {id.path for id in odd if id.kind == "master_param"} == REPLICATED

    tolerances = ReferenceTolerances(rung)
    norms = [id for id in odd if id.path.startswith(NORMS) and id.kind == "optimizer_state"]
    moments = [id for id in norms if id.name.endswith(".exp_avg")]
    assert len(moments) == 4
    for id in moments:
        reference = tolerances.reference.tensor(id)
        assert reference is not None
        others = [each.numpy() for each in tolerances.others(id)]
        passed = []
        for rank in (0, 1):
            parts = [part for part in parts_of(rung.candidate, id) if part.rank == rank]
            held = merge(parts, rung.candidate.sizes, shape=tuple(reference.shape)).tensor
            assert held is not None
            judged = judge_tensor(held.numpy(), reference.numpy(), others, rung.dtype)
            passed.append(judged.passed)
        assert passed == [True, False], id
