"""Bugs of tensor parallelism."""

from __future__ import annotations

from pytest_trainsafe.reference_models.bugs.bug import Bug

BUGS = (
    Bug(
        name="tp-embedding-mask",
        ttrace=1,
        category="WD",
        origin="https://github.com/awslabs/slapo/pull/80",
        what=(
            "Each rank masks the tokens whose embeddings other ranks hold. For the output, the "
            "mask is computed a second time, from ids that the first mask has already shifted. "
            "So rank 0 masks nothing and returns its row 0 for tokens of other ranks, and the "
            "other ranks mask all or most of their own tokens."
        ),
        when="tp > 1",
        triggers=lambda point: point.size("tp") > 1,
        module="embedding.word_embeddings",
        tensor="output",
        kind="activation",
        phase="forward",
        faults=("embedding.word_embeddings",),
    ),
    Bug(
        name="tp-overlap-dgrad",
        ttrace=11,
        category="WC",
        origin="https://github.com/NVIDIA/TransformerEngine/issues/1616",
        what=(
            "The gradient of a column-parallel layer's input is all-reduced over tp while the "
            "gradient of its weight is computed. Then the buffer before the reduction is passed "
            "on instead of the reduced one, so each rank continues with its own term of the sum."
        ),
        when="tp > 1 with tp_overlap",
        triggers=lambda point: point.size("tp") > 1,
        module="decoder.final_layernorm",
        tensor="output",
        kind="activation_grad",
        phase="backward",
        faults=("output_layer", "*.linear_qkv", "*.linear_fc1"),
        pattern="partial sum",
        arguments={"tp_overlap": True},
    ),
)
