"""Bugs of sequence parallelism."""

from __future__ import annotations

from pytest_trainsafe.reference_models.bugs.bug import Bug

BUGS = (
    Bug(
        name="sp-layernorm-grads",
        ttrace=12,
        category="MC",
        origin="https://github.com/NVIDIA/Megatron-LM/issues/1446",
        what=(
            "The parameters of the layer norms lack the mark `sequence_parallel`, so their "
            "gradients are never summed over tp. Each rank keeps the term of its shard of the "
            "sequence, so the ranks' weights drift apart."
        ),
        when="sp with tp > 1",
        triggers=lambda point: bool(point.get("sp", False)) and point.size("tp") > 1,
        module="decoder.final_layernorm",
        tensor="weight",
        kind="param_grad",
        phase="weights",
        faults=("*layernorm.*",),
        pattern="partial sum",
    ),
)
