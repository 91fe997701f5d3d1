"""The sum of the gradients that each rank's own micro-batches give a parameter in a step."""

from __future__ import annotations

from collections.abc import Callable

import torch

from pytest_trainsafe.align.merge import Part, accumulator
from pytest_trainsafe.core.layout import Flat
from pytest_trainsafe.core.tensor_id import TensorId
from pytest_trainsafe.trace.reader import Trace

Add = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def own_gradients(trace: Trace, id: TensorId, add: Add) -> list[Part]:
    """For each rank, the sum of its micro-batches' gradients of the parameter of `id`, by `add`.

    The order is that in which they were recorded.  [] if a rank has none.
    """
    sums: list[Part] = []
    for rank in trace.ranks:
        own: Part | None = None
        for other, event in rank.tensors.items():
            if (other.kind, other.step, other.path) == ("param_grad", id.step, id.path):
                gradient = trace.load(rank.rank, event)
                gradient = gradient.to(accumulator(gradient.dtype, summed=True))
                if own is not None:
                    gradient = add(own.tensor, gradient)
                own = Part(rank.rank, rank.coordinates, gradient, event.layout)
        if own is None:
            return []
        sums.append(own)
    return sums


def range_of(own: Part, held: Part | None) -> tuple[torch.Tensor, torch.Tensor] | None:
    """The range that a rank holds of a gradient, in its own gradient and as it is held.

    None if it holds none, or an empty one.
    """
    flat = [] if held is None else [each for each in held.layout if isinstance(each, Flat)]
    if held is None or not flat or not held.tensor.numel():
        return None
    [only] = flat
    return own.tensor.reshape(-1)[only.offset : only.offset + only.length], held.tensor
