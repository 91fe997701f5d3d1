"""After the backward: sums gradients over ranks that had different tokens, and clips their norm."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from pytest_trainsafe.reference_models.parallel.axes import Axes, Axis
from pytest_trainsafe.reference_models.parallel.collectives import all_reduce
from pytest_trainsafe.reference_models.parallel.data.reduction import BucketedReduction
from pytest_trainsafe.reference_models.parallel.marks import (
    is_expert,
    is_sequence_parallel,
    is_shared_embedding,
    is_split,
)
from pytest_trainsafe.reference_models.training.main_gradients import main_gradient, own_gradient


def reduce_gradients(
    parameters: Sequence[nn.Parameter], axes: Axes, buckets: BucketedReduction | None = None
) -> None:
    """Reduces all main gradients in place, so that they are the gradients of the whole step.

    Without `buckets`, each rank divides its loss by the tokens of the whole step, so gradients are
    summed over dp and cp.  With `buckets`, each rank divides its loss by its own tokens, so
    gradients are averaged over dp and cp.  With ZeRO, only this rank's shard of a gradient is valid
    afterwards; the function `own_gradient` returns this shard.
    """
    if buckets is not None:
        buckets.finish()
    for parameter in parameters:
        gradient = main_gradient(parameter)
        if buckets is None and is_expert(parameter):
            gradient.copy_(all_reduce(gradient, axes.edp))
        elif buckets is None:
            gradient.copy_(all_reduce(all_reduce(gradient, axes.dp), axes.cp))
        if is_sequence_parallel(parameter):
            gradient.copy_(all_reduce(gradient, axes.tp))
        if is_shared_embedding(parameter):
            gradient.copy_(all_reduce(gradient, axes.embedding))


def gradient_norm(parameters: Sequence[nn.Parameter], axes: Axes) -> Tensor:
    """The 2-norm of all main gradients together, a scalar, as on a single device.

    The squares of gradients that are split over tp are summed over tp, those of experts over ep,
    and those of pipeline stages over pp.  A gradient that several ranks or two stages hold counts
    once.  With ZeRO, the squares of all shares are summed over dp and cp.
    """
    if axes.pp.rank > 0:
        parameters = [each for each in parameters if not is_shared_embedding(each)]
    if axes.zero:
        return all_reduce(all_reduce(_squares(parameters, axes.tp), axes.dp_cp), axes.pp).sqrt()
    experts = [parameter for parameter in parameters if is_expert(parameter)]
    others = [parameter for parameter in parameters if not is_expert(parameter)]
    squares = _squares(others, axes.tp)
    if experts:
        squares = squares + all_reduce(_squares(experts, axes.tp), axes.ep)
    return all_reduce(squares, axes.pp).sqrt()


def clip_gradients(parameters: Sequence[nn.Parameter], norm: Tensor, limit: float) -> None:
    """Scales all main gradients in place so that their norm, `norm`, becomes at most `limit`."""
    factor = (limit / (norm + 1e-6)).clamp(max=1.0)
    for parameter in parameters:
        own_gradient(parameter).mul_(factor)


def _squares(parameters: Sequence[nn.Parameter], tp: Axis) -> Tensor:
    """The sum of the squares of all gradients over tp; replicated gradients count once."""
    split = [parameter for parameter in parameters if is_split(parameter)]
    shared = [parameter for parameter in parameters if not is_split(parameter)]
    squares = [_sum_of_squares(shared)] if shared else []
    if split:
        squares.append(all_reduce(_sum_of_squares(split), tp))
    return torch.stack(squares).sum()


def _sum_of_squares(parameters: Sequence[nn.Parameter]) -> Tensor:
    return torch.stack([own_gradient(parameter).square().sum() for parameter in parameters]).sum()
