"""Main gradients: those that the optimizer uses, in float32 for parameters of narrower dtypes.

A sum over many micro-batches loses its small terms in bfloat16, so a narrow parameter has a float32
`main_grad`, as in Megatron-LM.  The main gradient of a wide parameter is its `grad`, unless
gradients are kept in buckets (`parallel/data/buckets.py`).
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn


def is_narrow(parameter: Tensor) -> bool:
    """Return whether a parameter's dtype is too narrow for sums of gradients and for updates."""
    return torch.promote_types(parameter.dtype, torch.float32) != parameter.dtype


def main_gradient(parameter: nn.Parameter) -> Tensor:
    """Return the tensor of a parameter's gradient of the whole step; it may be changed in place."""
    gradient = getattr(parameter, "main_grad", parameter.grad)
    assert isinstance(gradient, Tensor), "no backward has reached this parameter"
    return gradient


def own_gradient(parameter: nn.Parameter) -> Tensor:
    """Return the main gradient as the optimizer uses it: with ZeRO, this rank's shard of it."""
    run = getattr(parameter, "main_param_range", None)
    gradient = main_gradient(parameter)
    return gradient if run is None else gradient.view(-1)[slice(*run)]


def accumulate(parameters: Iterable[nn.Parameter]) -> None:
    """Add the `grad` of the last backward to `main_grad`, and clear it.

    For a parameter without `main_grad`, autograd accumulates in `grad` itself.  A parameter that no
    backward has reached gets a gradient of zeros.
    """
    for parameter in parameters:
        apart = hasattr(parameter, "main_grad")
        if parameter.grad is None and not apart:
            parameter.grad = torch.zeros_like(parameter)
        if apart and parameter.grad is not None:
            main_gradient(parameter).add_(parameter.grad)
            parameter.grad = None


def clear(parameters: Iterable[nn.Parameter]) -> None:
    """Clear the step's gradients."""
    for parameter in parameters:
        parameter.grad = None
        if hasattr(parameter, "main_grad"):
            main_gradient(parameter).zero_()
