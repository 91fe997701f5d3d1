"""Bugs of ZeRO, which shards the optimizer over dp and cp."""

from __future__ import annotations

from pytest_trainsafe.reference_models.bugs.bug import Bug

BUGS = (
    Bug(
        name="zero-tied-embedding",
        ttrace=5,
        category="WC",
        origin="https://github.com/NVIDIA/Megatron-LM/issues/656",
        what=(
            "The two copies of a tied embedding are at different places in the buckets of the "
            "first and the last pipeline stage, so a rank's shards of the two copies have "
            "different elements. The sum over the two copies, which is computed after the "
            "reduce-scatter, adds averaged gradients to gradients that are not reduced, and the "
            "copies drift apart."
        ),
        when="zero with pp > 1 and dp * cp > 1, and a tied embedding",
        sweep={"zero": [0, 1]},
        triggers=lambda point: (
            int(point.get("zero", 0)) > 0
            and point.size("pp") > 1
            and point.size("dp") * point.size("cp") > 1
        ),
        module="embedding.word_embeddings",
        tensor="weight",
        kind="main_grad",
        phase="reduction",
        faults=("embedding.word_embeddings.weight",),
        arguments={"tied": True, "layers": 2, "bucket": 4000},
    ),
    Bug(
        name="zero-gather-lost",
        ttrace=9,
        category="WC",
        origin="https://github.com/NVIDIA/Megatron-LM/issues/663",
        what=(
            "The all-gathers of updated parameters are started, but the list of them is replaced "
            "by an empty one before any has been waited for. So the gathered values are never "
            "copied into the parameters, and the model keeps its initial parameters."
        ),
        when="zero with overlap_param_gather",
        sweep={"zero": [0, 1]},
        triggers=lambda point: int(point.get("zero", 0)) > 0,
        module="embedding.word_embeddings",
        tensor="weight",
        kind="update",
        phase="optimizer",
        faults=("*",),
        arguments={"overlap_param_gather": True},
    ),
)
