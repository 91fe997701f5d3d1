"""Marks on parameters, in Megatron-LM's convention: how the recorder knows what a rank holds."""

from __future__ import annotations

from torch import nn


def mark_split(parameter: nn.Parameter, dim: int, blocks: tuple[int, ...] = ()) -> None:
    """This rank holds its part of dimension `dim`, cut over tp.

    `blocks` (ours) are the sizes, in the whole parameter, of fused blocks each cut on its own.
    """
    parameter.tensor_model_parallel = True  # type: ignore[attr-defined]
    parameter.partition_dim = dim  # type: ignore[attr-defined]
    parameter.partition_blocks = blocks  # type: ignore[attr-defined]


def mark_sequence_parallel(parameter: nn.Parameter) -> None:
    """Every tp rank holds all of it, but sees only its shard of the sequence.

    So its gradient on one rank is a term, and the ranks' terms are still to be summed.
    """
    parameter.sequence_parallel = True  # type: ignore[attr-defined]


def mark_shared_embedding(parameter: nn.Parameter) -> None:
    """The first and the last pipeline stage each hold a copy, and a term of its gradient."""
    parameter.shared_embedding = True  # type: ignore[attr-defined]


def mark_expert(parameter: nn.Parameter) -> None:
    """Only some of the dp and cp ranks hold it, and its gradients are summed over those alone."""
    parameter.allreduce = False  # type: ignore[attr-defined]


def is_expert(parameter: nn.Parameter) -> bool:
    """Whether the parameter is held by its owners only."""
    return not getattr(parameter, "allreduce", True)


def is_split(parameter: nn.Parameter) -> bool:
    """Whether the parameter is cut over tp."""
    return bool(getattr(parameter, "tensor_model_parallel", False))


def is_sequence_parallel(parameter: nn.Parameter) -> bool:
    """Whether the parameter's gradients are to be summed over tp."""
    return bool(getattr(parameter, "sequence_parallel", False))


def is_shared_embedding(parameter: nn.Parameter) -> bool:
    """Whether the parameter's gradients are to be summed over the first and the last stage."""
    return bool(getattr(parameter, "shared_embedding", False))
