"""Marks parameters as Megatron-LM does, so that the recorder knows which part a rank holds."""

from __future__ import annotations

from torch import nn


def mark_split(parameter: nn.Parameter, dim: int, blocks: tuple[int, ...] = ()) -> None:
    """Marks a parameter that is split over tp along dimension `dim`.

    `blocks` are the sizes, in the whole parameter, of fused blocks that are split separately;
    Megatron-LM has no such mark.
    """
    parameter.tensor_model_parallel = True  # type: ignore[attr-defined]
    parameter.partition_dim = dim  # type: ignore[attr-defined]
    parameter.partition_blocks = blocks  # type: ignore[attr-defined]


def mark_sequence_parallel(parameter: nn.Parameter) -> None:
    """Marks a parameter that every tp rank holds, but applies only to its shard of the sequence.

    Its gradient on a rank is a partial sum, which must still be summed over tp.
    """
    parameter.sequence_parallel = True  # type: ignore[attr-defined]


def mark_shared_embedding(parameter: nn.Parameter) -> None:
    """Marks a tied embedding, of which the first and the last pipeline stage hold copies.

    The gradient on each of the two stages is a partial sum.
    """
    parameter.shared_embedding = True  # type: ignore[attr-defined]


def mark_expert(parameter: nn.Parameter) -> None:
    """Marks an expert's parameter, which only some of the dp and cp ranks hold.

    Its gradients are summed over these ranks only.
    """
    parameter.allreduce = False  # type: ignore[attr-defined]


def is_expert(parameter: nn.Parameter) -> bool:
    """Whether the parameter belongs to an expert, and only some dp and cp ranks hold it."""
    return not getattr(parameter, "allreduce", True)


def is_split(parameter: nn.Parameter) -> bool:
    """Whether the parameter is split over tp."""
    return bool(getattr(parameter, "tensor_model_parallel", False))


def is_sequence_parallel(parameter: nn.Parameter) -> bool:
    """Whether the parameter's gradients must be summed over tp."""
    return bool(getattr(parameter, "sequence_parallel", False))


def is_shared_embedding(parameter: nn.Parameter) -> bool:
    """Whether the parameter's gradients must be summed over the first and the last stage."""
    return bool(getattr(parameter, "shared_embedding", False))
