"""Main gradients: what the optimizer uses, kept in float32 where parameters are narrower.

A sum of many micro-batches loses its small terms in bfloat16, so a narrow parameter carries a
float32 `main_grad` as in Megatron-LM.  Of a wide parameter, `grad` is the main gradient, unless
gradients are kept in buckets (`parallel/data/buckets.py`).
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn


def is_narrow(parameter: Tensor) -> bool:
    """Whether sums and updates of this parameter need a wider copy."""
    return torch.promote_types(parameter.dtype, torch.float32) != parameter.dtype


def main_gradient(parameter: nn.Parameter) -> Tensor:
    """The tensor of a parameter's gradient for the whole step; it may be changed in place."""
    gradient = getattr(parameter, "main_grad", parameter.grad)
    assert isinstance(gradient, Tensor), "no backward has reached this parameter"
    return gradient


def own_gradient(parameter: nn.Parameter) -> Tensor:
    """The main gradient, or with ZeRO this rank's shard of it, as the optimizer uses it."""
    run = getattr(parameter, "main_param_range", None)
    gradient = main_gradient(parameter)
    return gradient if run is None else gradient.view(-1)[slice(*run)]


def accumulate(parameters: Iterable[nn.Parameter]) -> None:
    """Move what the last backward left in `grad` into `main_grad`; without, autograd adds up.

    What the backward did not reach has gradient zero.
    """
    for parameter in parameters:
        apart = hasattr(parameter, "main_grad")
        if parameter.grad is None and not apart:
            parameter.grad = torch.zeros_like(parameter)
        if apart and parameter.grad is not None:
            main_gradient(parameter).add_(parameter.grad)
            parameter.grad = None


def clear(parameters: Iterable[nn.Parameter]) -> None:
    """Clears the step's gradients."""
    for parameter in parameters:
        parameter.grad = None
        if hasattr(parameter, "main_grad"):
            main_gradient(parameter).zero_()
