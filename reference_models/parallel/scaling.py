"""Quantisation to FP8 with one scale for a whole tensor, however many ranks hold parts of it.

Delayed scaling (Micikevicius et al. 2022; TransformerEngine's default recipe): the scale of a step
comes from the largest values of the steps before it, so that quantising needs no look at the
tensor first.  The values are emulated: codes of torch's FP8 dtypes, computed with in the wider
dtype that the tensor came in.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from pytest_trainsafe.reference_models.parallel.axes import Axes, Axis
from pytest_trainsafe.reference_models.parallel.collectives import all_reduce

#: Forward tensors have more precision, gradients more range.
FORWARD, BACKWARD = torch.float8_e4m3fn, torch.float8_e5m2

#: How many steps a largest value is remembered.
HISTORY = 16


class Quantizer:
    """The scale of one tensor: of the input, the weight, or the output's gradient of a layer."""

    def __init__(self, dtype: torch.dtype, axes: Axes) -> None:
        self.dtype = dtype
        self.largest = torch.finfo(dtype).max
        self.axes = axes
        self.history: deque[Tensor] = deque(maxlen=HISTORY)
        self.seen: Tensor | None = None

    def codes(self, tensor: Tensor) -> tuple[Tensor, Tensor]:
        """The tensor in FP8, and the scale it was multiplied by."""
        tensor = tensor.detach()
        scale = self._scale(tensor)
        scaled = (tensor.to(scale.dtype) * scale).clamp(-self.largest, self.largest)
        return scaled.to(self.dtype), scale

    def rounded(self, tensor: Tensor) -> Tensor:
        """The values that the codes stand for."""
        return values_of(*self.codes(tensor), tensor.dtype)

    def _scale(self, tensor: Tensor) -> Tensor:
        amax = tensor.abs().amax().to(torch.promote_types(tensor.dtype, torch.float32))
        self.seen = amax if self.seen is None else torch.maximum(self.seen, amax)
        if self.history:
            amax = torch.stack(list(self.history)).amax()
        else:
            # Nothing to go by yet: as large as the tensor is, in all its parts.
            amax = reduced(amax, holders(self.axes))
        return torch.where(amax > 0, self.largest / amax, 1)


def values_of(codes: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
    """What codes of this scale stand for."""
    return (codes.to(scale.dtype) / scale).to(dtype)


def holders(axes: Axes) -> tuple[Axis, ...]:
    """The axes whose ranks hold parts of one tensor, and so must agree on its scale."""
    if axes.planted("fp8-amax-group"):
        return (axes.cp,)  # The group of data parallelism, of which cp is a part.
    return axes.tp, axes.cp


def reduced(amax: Tensor, over: Sequence[Axis]) -> Tensor:
    """The largest over several axes."""
    for axis in over:
        amax = all_reduce(amax, axis, dist.ReduceOp.MAX)
    return amax


def finish_step(quantizers: Sequence[Quantizer], axes: Axes) -> None:
    """Enter the largest values of the step into the histories, over all micro-batches and ranks."""
    seen = [quantizer.seen for quantizer in quantizers if quantizer.seen is not None]
    if not seen:
        return
    together = reduced(torch.stack(seen), (*holders(axes), axes.dp))
    for quantizer, amax in zip(quantizers, together, strict=True):
        quantizer.history.append(amax)
        quantizer.seen = None
