"""After the backward: sum gradients over the ranks that saw different tokens, and their norm."""

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
    """Make every main gradient that of the whole step, in place.

    Sums over dp and cp, for each rank's loss is already divided by the tokens of the whole step;
    with `buckets` they are means, and with ZeRO only `own_gradient` is of use afterwards.
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
    """The 2-norm of all main gradients together, a scalar, as a single device would have it.

    What is cut over tp is summed over it, and experts over ep; what all ranks hold counts once,
    and so does what two stages of a pipeline hold.  With ZeRO every gradient is cut over dp and
    cp, an expert's over those who hold it.
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
    """Scale all main gradients, in place, so that their norm is at most `limit`."""
    factor = (limit / (norm + 1e-6)).clamp(max=1.0)
    for parameter in parameters:
        own_gradient(parameter).mul_(factor)


def _squares(parameters: Sequence[nn.Parameter], tp: Axis) -> Tensor:
    """The sum of all squares, of the tp ranks together."""
    split = [parameter for parameter in parameters if is_split(parameter)]
    shared = [parameter for parameter in parameters if not is_split(parameter)]
    squares = [_sum_of_squares(shared)] if shared else []
    if split:
        squares.append(all_reduce(_sum_of_squares(split), tp))
    return torch.stack(squares).sum()


def _sum_of_squares(parameters: Sequence[nn.Parameter]) -> Tensor:
    return torch.stack([own_gradient(parameter).square().sum() for parameter in parameters]).sum()
