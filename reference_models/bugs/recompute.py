"""Bugs of activation recomputation."""

from __future__ import annotations

from pytest_trainsafe.reference_models.bugs.bug import Bug

BUGS = (
    Bug(
        name="recompute-chunk-input",
        ttrace=2,
        category="WD",
        origin="https://github.com/NVIDIA/Megatron-LM/issues/371",
        what=(
            "Each layer of a recomputed chunk gets the chunk's input instead of the output of the "
            "previous layer, so only the last layer of a chunk has an effect."
        ),
        when="recompute=full with recompute_num_layers > 1, in stages with several layers",
        sweep={"recompute": ["none", "full"]},
        triggers=lambda point: (
            point.get("recompute", "none") in ("full", True) and point.size("pp") <= 2
        ),
        module="decoder.layers.1.input_layernorm",
        tensor="output",
        kind="activation",
        phase="forward",
        faults=("decoder",),
        arguments={"recompute_num_layers": 2, "layers": 4},
    ),
)
