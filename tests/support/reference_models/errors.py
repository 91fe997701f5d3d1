"""Which tensors of a parallel model may differ from those of one rank, and by how much."""

from __future__ import annotations

from tests.support.reference_models.rank_double import CUT_BY_PP

ROUNDING = 1e-13


def key_bias_drifts(key: str) -> bool:
    """Whether a tensor depends on the bias of attention keys, which drifts only by rounding.

    The bias shifts all scores of a query equally, so its gradient is only rounding error, which
    Adam divides by its own magnitude.  The bias and, a step later, the projection's output differ
    by it; the softmax cancels it.
    """
    return (key.startswith("param ") and "linear_qkv.bias" in key) or (
        key.startswith("activation ") and "linear_qkv" in key and key.endswith(" 1")
    )


def exists_in_a_pipeline(key: str) -> bool:
    """Whether a key also exists in a pipeline: it is no output of a module in CUT_BY_PP."""
    kind, path, *_ = key.split(" ")
    return not kind.startswith("activation") or path.replace(".", "", 1) not in CUT_BY_PP
