"""Bugs of data parallelism."""

from __future__ import annotations

from pytest_trainsafe.reference_models.bugs.bug import Bug

BUGS = (
    Bug(
        name="dp-gradient-scaling",
        ttrace=4,
        category="WD",
        origin="https://github.com/NVIDIA/Megatron-LM/issues/906",
        what=(
            "Gradients in the buckets are divided by the size of dp before they are summed over "
            "dp and cp, so that every main gradient is cp times too large. Losses and activation "
            "gradients are right, and AdamW, which ignores the scale of gradients, hides the rest."
        ),
        when="cp > 1, with gradients reduced in buckets",
        triggers=lambda point: point.size("cp") > 1,
        module="embedding.word_embeddings",
        tensor="weight",
        kind="main_grad",
        phase="reduction",
        faults=("*",),
        pattern="scaled",
        arguments={"overlap_grad_reduce": True, "bucket": 20_000},
    ),
)
