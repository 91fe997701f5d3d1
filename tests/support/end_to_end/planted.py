"""The marker of tests of a planted bug, and the assertion that they make at each Point."""

from __future__ import annotations

import pytest

from pytest_trainsafe import assert_trainsafe
from pytest_trainsafe.assertions import TrainsafeFailure
from pytest_trainsafe.reference_models import bugs, deepseek, gpt, moe
from pytest_trainsafe.report.panels import Graph
from pytest_trainsafe.report.sections import begin, collected, end

SAYS = {
    "tp-embedding-mask": "",
    "cp-loss-scaling": "the value is 2 times the reference, which equals cp",
    "sp-layernorm-grads": "the ranks of tp hold partial sums: rank0 + rank1",
    "pp-stage-division": "no rank of the candidate recorded it",
    "moe-router-grads": "the ranks of tp hold partial sums: rank0 + rank1",
    "recompute-chunk-input": "",
    "tp-overlap-dgrad": "the ranks of tp hold partial sums: rank0 + rank1",
    "cp-attention-backward-layout": "",
    "dp-gradient-scaling": "the value is 2 times the reference, which equals cp",
    "zero-gather-lost": "",
    "zero-tied-embedding": "",
    "fp8-amax-group": "",
    "fp8-stale-weight": "",
    "cp-layernorm-grads": "2 times the reference, which equals cp or micro-batches or tp",
    "mla-latent-grads": "the ranks of tp hold partial sums: rank0 + rank1",
    "mla-shared-key-grads": "wrong only in rows 16-23 of 24 in dimension 2",
    "mla-rope-blocks": "48 of the 96 indices along dimension 2 are in another order",
    "shared-expert-twice": "the value is 2 times the reference, which equals tp",
    "router-bias-counts": "replicas over tp differ: rank 1 from rank 0",
    "router-bias-weights": "",
    "mtp-shift-local": "wrong only in rows 7, 23 of 32 in dimension 1",
    "mtp-loss-scale": "the value is 0.5 times the reference, which equals 1/cp",
    "mtp-embedding-grads": "the ranks of pp hold partial sums",
}


PROGRAMS = {"gpt": gpt.train, "moe": moe.train, "deepseek": deepseek.train}


def planted(name, **axes):
    bug = bugs.find(name)
    # As small as the bug needs; tests/reference_models check that it shows in these sizes.
    arguments = {"layers": 1, "steps": max(bug.step, 0) + 1, **bug.arguments}
    return pytest.mark.trainsafe(
        PROGRAMS[bug.program], args=arguments, candidate_args={**arguments, "bug": name}, **axes
    )


def first_wrong(sections):
    """What the dataflow of a page marks as the first wrong tensor."""
    graphs = [p for each in sections for p in each.panels if isinstance(p, Graph)]
    assert len(graphs) == 1
    return [node.anchor for node in graphs[0].nodes if node.state == "first"]


def judge(name, case, candidate, reference):
    """Expect a failure that matches the bug's entry at Points that trigger it, a pass elsewhere."""
    bug = bugs.find(name)
    begin()  # to collect what a page would show
    try:
        if not bug.triggers(case.point):
            assert_trainsafe(candidate, reference)
            assert first_wrong(collected()) == []
            return
        with pytest.raises(TrainsafeFailure) as failure:
            assert_trainsafe(candidate, reference)
        shown = first_wrong(collected())
    finally:
        end()
    text = " ".join(str(failure.value).split())
    when = f"step {bug.step}" + " · micro-batch 0" * (
        bug.kind not in ("main_grad", "update", "buffer")
    )
    when = when if bug.step >= 0 else "before the first step"
    starts = f"{bug.module}.{bug.tensor} · {bug.kind} · {when} · float64"
    assert f"starts at {starts}" in text
    assert shown == [starts.removesuffix(" · float64")]
    # With sp, the other ranks' terms of this rank's shard of the sequence are not recorded.
    terms_are_lost = name == "tp-overlap-dgrad" and case.point.get("sp", False)
    if not terms_are_lost:
        assert SAYS[name] in text
    assert "look at" in text
    assert "an annotation, or part of one" not in text
