"""The sum of the gradients that each rank's own micro-batches give a parameter in a step."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec
import torch

from pytest_trainsafe.align.merge import Part, accumulator
from pytest_trainsafe.core.layout import Flat
from pytest_trainsafe.core.tensor_id import TensorId
from pytest_trainsafe.trace.reader import RankTrace, Trace

Add = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]

#: By the serial number of a trace, the rank and the step: every parameter asks for the same.
_known: dict[tuple[int, int, int], tuple[int | None, ...]] = {}


def own_gradients(trace: Trace, id: TensorId, add: Add) -> list[Part]:
    """For each rank, the sum of its micro-batches' gradients of the parameter of `id`, by `add`.

    The order is that in which they were recorded.  [] if a rank has none.
    """
    sums: list[Part] = []
    for rank in trace.ranks:
        own: Part | None = None
        for microbatch in _microbatches(trace, rank, id.step):
            event = rank.tensors.get(
                msgspec.structs.replace(id, kind="param_grad", microbatch=microbatch)
            )
            if event is None:
                continue
            gradient = trace.load(rank.rank, event)
            gradient = gradient.to(accumulator(gradient.dtype, summed=True))
            if own is not None:
                gradient = add(own.tensor, gradient)
            own = Part(rank.rank, rank.coordinates, gradient, event.layout)
        if own is None:
            return []
        sums.append(own)
    return sums


def _microbatches(trace: Trace, rank: RankTrace, step: int) -> tuple[int | None, ...]:
    """The micro-batches of a step of which a rank has gradients, in the order of recording."""
    key = trace.serial, rank.rank, step
    if key not in _known:
        _known[key] = tuple(
            dict.fromkeys(
                id.microbatch for id in rank.tensors if (id.kind, id.step) == ("param_grad", step)
            )
        )
    return _known[key]


def in_ranges(parts: Iterable[Part]) -> bool:
    """Whether ranks hold ranges of a flattened tensor."""
    return any(isinstance(each, Flat) for part in parts for each in part.layout)


def range_of(own: Part, held: Part | None) -> tuple[torch.Tensor, torch.Tensor] | None:
    """The range that a rank holds of a gradient, in its own gradient and as it is held.

    None if it holds none, or an empty one.
    """
    flat = [] if held is None else [each for each in held.layout if isinstance(each, Flat)]
    if held is None or not flat or not held.tensor.numel():
        return None
    [only] = flat
    return own.tensor.reshape(-1)[only.offset : only.offset + only.length], held.tensor
