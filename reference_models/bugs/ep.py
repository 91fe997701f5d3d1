"""Bugs of mixtures of experts."""

from __future__ import annotations

from pytest_trainsafe.reference_models.bugs.bug import Bug

BUGS = (
    Bug(
        name="moe-router-grads",
        ttrace=6,
        category="MC",
        origin="https://github.com/NVIDIA/Megatron-LM/issues/599",
        what=(
            "The router's weight lacks the mark `sequence_parallel`, so its gradients are never "
            "summed over tp: each rank keeps the term of its shard of the sequence, and the ranks' "
            "routers and their choices of experts drift apart."
        ),
        when="sp with tp > 1, in a mixture of experts",
        triggers=lambda point: bool(point.get("sp", False)) and point.size("tp") > 1,
        module="decoder.layers.0.mlp.router",
        tensor="weight",
        kind="param_grad",
        phase="weights",
        faults=("*.mlp.router.weight",),
        pattern="partial sum",
        program="moe",
        arguments={"layers": 1},
    ),
)
