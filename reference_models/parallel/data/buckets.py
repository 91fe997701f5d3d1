"""Buckets: main gradients in one flat tensor, so that one collective reduces all of them.

Made by `reduction.py`; `zero.py` shards each of them over the ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from pytest_trainsafe.reference_models.parallel.axes import Axis

#: The size of buckets where none is given: a few of them in a small model.
SIZE = 20_000


class Bucket:
    """Some parameters of one dtype, their main gradients, and where in the bucket each lies.

    `gradients` is padded with zeros to a multiple of the ranks of `axis`, over which the bucket is
    reduced, so that each can have an equal share.  Every parameter gains `main_grad`, its own
    piece in its own shape, float32 where it is narrower.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], axis: Axis) -> None:
        first, self.axis = parameters[0], axis
        self.places: dict[nn.Parameter, tuple[int, int]] = {}
        end = 0
        for parameter in parameters:
            self.places[parameter] = end, end + parameter.numel()
            end += parameter.numel()
        self.share = -(-end // axis.size)
        self.gradients = torch.zeros(
            self.share * axis.size,
            dtype=torch.promote_types(first.dtype, torch.float32),
            device=first.device,
        )
        for parameter, (start, stop) in self.places.items():
            marked: Any = parameter
            marked.main_grad = self.gradients[start:stop].view_as(parameter)

    @property
    def own(self) -> slice:
        """This rank's share."""
        return slice(self.axis.rank * self.share, (self.axis.rank + 1) * self.share)

    def flat_parameters(self) -> Tensor:
        """The parameters' values as the gradients lie, in their own dtype."""
        first = next(iter(self.places))
        flat = torch.zeros(self.gradients.shape, dtype=first.dtype, device=first.device)
        for parameter, (start, stop) in self.places.items():
            flat[start:stop] = parameter.detach().reshape(-1)
        return flat


def fill_buckets(
    parameters: Iterable[nn.Parameter],
    size: int,
    axis: Callable[[nn.Parameter], Axis],
    alone: Sequence[nn.Parameter] = (),
) -> list[Bucket]:
    """Buckets of at least `size` elements (but for the last), in the order that backwards take.

    A backward reaches the last parameters first, so that the first bucket is full first.  A size
    of 0 stands for SIZE.  A parameter's `axis` is the one over which its ranks hold copies.  The
    parameters `alone` have buckets of their own.
    """
    apart = {id(parameter) for parameter in alone}
    groups: list[list[nn.Parameter]] = []
    full = True
    for parameter in reversed(list(parameters)):
        if full or id(parameter) in apart or _kind(groups[-1][0], axis) != _kind(parameter, axis):
            groups.append([])
        groups[-1].append(parameter)
        held = sum(each.numel() for each in groups[-1])
        full = held >= (size or SIZE) or id(parameter) in apart
    return [Bucket(group, axis(group[0])) for group in groups]


def _kind(
    parameter: nn.Parameter, axis: Callable[[nn.Parameter], Axis]
) -> tuple[torch.dtype, Axis]:
    """What the parameters of one bucket have in common."""
    return parameter.dtype, axis(parameter)
