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
            "The largest absolute values, from which the scales are computed, are reduced over "
            "the group of data parallelism only, so tp ranks quantise their parts of one tensor "
            "with different scales. With sp, a rank gathers the other ranks' FP8 values and reads "
            "them with its own, wrong scale."
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
            "The weight is cast to FP8 again only while autograd records. The first forward of a "
            "recomputed layer runs without autograd, so it uses the weight of the previous step. "
            "The recomputation casts the new weight, so the gradients belong to another forward."
        ),
        when="fp8 with recompute=full, from the second step on",
        sweep={"recompute": ["none", "full"]},
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
