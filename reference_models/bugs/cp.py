"""Bugs of context parallelism."""

from __future__ import annotations

from pytest_trainsafe.reference_models.bugs.bug import Bug

BUGS = (
    Bug(
        name="cp-loss-scaling",
        ttrace=3,
        category="WD",
        origin="https://github.com/NVIDIA/Megatron-LM/issues/673",
        what=(
            "The loss to differentiate is multiplied by the size of cp, although it is already "
            "divided by the tokens of the whole step. The reported loss stays right, and AdamW, "
            "which ignores the scale of gradients, hides the rest."
        ),
        when="cp > 1",
        triggers=lambda point: point.size("cp") > 1,
        module="cross_entropy",
        tensor="output",
        kind="activation_grad",
        pattern="scaled",
    ),
)
