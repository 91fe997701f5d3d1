"""Quantisation to FP8 with one scale for a whole tensor, however many ranks hold parts of it.

Uses delayed scaling (Micikevicius et al. 2022; TransformerEngine's default recipe): the scale of a
step comes from the largest values of earlier steps, so the tensor's own maximum is not needed
first.  FP8 arithmetic is emulated: values are rounded to torch's FP8 dtypes, and computations use
the tensor's own, wider dtype.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from pytest_trainsafe.reference_models.parallel.axes import Axes, Axis
from pytest_trainsafe.reference_models.parallel.collectives import all_reduce

#: The dtype of forward tensors has more precision, that of gradients more range.
FORWARD, BACKWARD = torch.float8_e4m3fn, torch.float8_e5m2

#: The number of steps for which a largest value is kept.
HISTORY = 16


class Quantizer:
    """Quantises one tensor of a layer: its input, its weight, or the gradient of its output.

    `history` has the largest absolute value in each of the last steps, from which the scale
    follows; `seen` is the largest absolute value in the current step so far.
    """

    def __init__(self, dtype: torch.dtype, axes: Axes) -> None:
        self.dtype = dtype
        self.largest = torch.finfo(dtype).max
        self.axes = axes
        self.history: deque[Tensor] = deque(maxlen=HISTORY)
        self.seen: Tensor | None = None

    def codes(self, tensor: Tensor) -> tuple[Tensor, Tensor]:
        """The tensor in FP8, and the scale by which it was multiplied first."""
        tensor = tensor.detach()
        scale = self._scale(tensor)
        scaled = (tensor.to(scale.dtype) * scale).clamp(-self.largest, self.largest)
        return scaled.to(self.dtype), scale

    def rounded(self, tensor: Tensor) -> Tensor:
        """The tensor rounded to FP8, in its own dtype."""
        return values_of(*self.codes(tensor), tensor.dtype)

    def _scale(self, tensor: Tensor) -> Tensor:
        amax = tensor.abs().amax().to(torch.promote_types(tensor.dtype, torch.float32))
        self.seen = amax if self.seen is None else torch.maximum(self.seen, amax)
        if self.history:
            amax = torch.stack(list(self.history)).amax()
        else:
            # There is no history yet, so use the largest value of the tensor itself, on all ranks.
            amax = reduced(amax, holders(self.axes))
        return torch.where(amax > 0, self.largest / amax, 1)


def values_of(codes: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
    """The values that FP8 codes of this scale represent, in the given dtype."""
    return (codes.to(scale.dtype) / scale).to(dtype)


def holders(axes: Axes) -> tuple[Axis, ...]:
    """The axes whose ranks hold parts of one tensor, and so must agree on its scale."""
    if axes.planted("fp8-amax-group"):
        return (axes.cp,)  # As if the scale were shared over the data parallel ranks only.
    return axes.tp, axes.cp


def reduced(amax: Tensor, over: Sequence[Axis]) -> Tensor:
    """The maximum over the ranks of several axes."""
    for axis in over:
        amax = all_reduce(amax, axis, dist.ReduceOp.MAX)
    return amax


def finish_step(quantizers: Sequence[Quantizer], axes: Axes) -> None:
    """Appends the largest value of the step to each history.

    It is the maximum over all micro-batches, and over the ranks of tp, cp and dp.
    """
    seen = [quantizer.seen for quantizer in quantizers if quantizer.seen is not None]
    if not seen:
        return
    together = reduced(torch.stack(seen), (*holders(axes), axes.dp))
    for quantizer, amax in zip(quantizers, together, strict=True):
        quantizer.history.append(amax)
        quantizer.seen = None
