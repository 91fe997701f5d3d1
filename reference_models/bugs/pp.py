"""Bugs of pipeline parallelism."""

from __future__ import annotations

from pytest_trainsafe.reference_models.bugs.bug import Bug

BUGS = (
    Bug(
        name="pp-stage-division",
        ttrace=10,
        category="WD",
        origin="https://github.com/NVIDIA/Megatron-LM/issues/468",
        what=(
            "Each stage gets the number of layers divided by the number of stages, rounded down. "
            "If the division leaves a remainder, the last layers are in no stage. The model trains "
            "without them, and its loss falls."
        ),
        when="pp > 1, with a number of layers that is no multiple of the number of stages",
        triggers=lambda point: point.size("pp") > 1,
        arguments={"layers": 5},
        module="decoder.layers.4.input_layernorm",
        tensor="weight",
        kind="param",
        phase="initial",
        faults=("decoder.layers.*",),
        step=-1,
    ),
)
