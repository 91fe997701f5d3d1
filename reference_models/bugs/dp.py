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
            "dp and cp, so every main gradient is too large by a factor of the size of cp. Losses "
            "and activation gradients are right, and the parameters' updates are nearly right, "
            "because AdamW ignores the scale of gradients."
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
