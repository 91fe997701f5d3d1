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
            "The mask that blanks tokens of other ranks is made a second time for the output, "
            "from ids that the first mask has already shifted. Rank 0 then blanks nothing, and "
            "tokens of other ranks come out as its row 0; the other ranks blank all or most of "
            "their own."
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
            "The gradient of a column-parallel layer's input is reduced over tp while the gradient "
            "of its weight is computed. Then the input buffer of the reduction is passed on "
            "instead of its output, so each rank continues with its own term."
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
