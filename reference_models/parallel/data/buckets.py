"""Buckets: several main gradients in one flat tensor, so that one collective reduces all of them.

Made by `reduction.py`; `zero.py` shards each bucket over the ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from pytest_trainsafe.reference_models.parallel.axes import Axis

#: The default size of a bucket, in elements; a small model has a few buckets of this size.
SIZE = 20_000


class Bucket:
    """Some parameters of one dtype, and a flat tensor with their main gradients.

    `places` maps each parameter to the (start, end) of its range in the flat tensor `gradients`,
    which is float32 if the parameters are narrower.  `gradients` is padded with zeros to a multiple
    of the size of `axis`, over which the bucket is reduced, so that all ranks have equal shares.
    Every parameter gets an attribute `main_grad`: a view of its range, in the parameter's shape.
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
        """The range of the bucket that is this rank's share."""
        return slice(self.axis.rank * self.share, (self.axis.rank + 1) * self.share)

    def flat_parameters(self) -> Tensor:
        """The parameters' values in a flat tensor, at the places of their gradients.

        It has the parameters' dtype and is padded with zeros.
        """
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
    """Distributes the parameters over buckets, the last parameters first.

    A backward reaches the last parameters first, so the gradients of the first bucket are complete
    first.  A bucket gets parameters until it has at least `size` elements (SIZE if `size` is 0);
    the next parameter begins a new one, as does one of another dtype or axis.  `axis` returns the
    axis over which a parameter is replicated.  Each parameter in `alone` gets a bucket of its own.
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
    """The properties that all parameters of a bucket must share: the dtype and the axis."""
    return parameter.dtype, axis(parameter)
