"""Bugs of FP8 training."""

from __future__ import annotations

from pytest_trainsafe.reference_models.bugs.bug import Bug

BUGS = (
    Bug(
        name="fp8-amax-group",
        ttrace=7,
        category="WC",
        origin="https://github.com/NVIDIA/TransformerEngine/issues/335",
        what=(
            "The largest values that make the scales are reduced over the group of data "
            "parallelism, so tp ranks quantise their parts of one tensor with scales of their "
            "own. With sp, parts are gathered as codes and read with the wrong scale."
        ),
        when="fp8 with tp > 1",
        triggers=lambda point: point.size("tp") > 1,
        module="decoder.layers.0.self_attention.linear_qkv",
        tensor="output",
        kind="activation",
        phase="forward",
        faults=("*.linear_*",),
        arguments={"fp8": True},
    ),
    Bug(
        name="fp8-stale-weight",
        ttrace=8,
        category="WD",
        origin="https://github.com/NVIDIA/TransformerEngine/issues/539",
        what=(
            "The weight is cast to FP8 anew only where autograd is on. The first pass through a "
            "recomputed layer is without, so it computes with the weight of the step before; "
            "recomputation then casts it, and the gradients are those of another forward."
        ),
        when="fp8 with recompute=full, from the second step on",
        triggers=lambda point: point.get("recompute", "none") in ("full", True),
        module="decoder.layers.0.self_attention.linear_qkv",
        tensor="output",
        kind="activation",
        phase="forward",
        faults=("*.linear_*",),
        pattern="",
        step=1,
        arguments={"fp8": True, "steps": 2},
    ),
)
