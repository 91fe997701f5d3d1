"""What a module holds itself, the code that calls it, and base classes of modules.

Needs `_parameters`, `_buffers`, `_modules`, `_backward_hooks`, `_backward_pre_hooks` and
`_wrapped_call_impl` of torch.nn.Module,
`_BatchNorm` of torch.nn.modules.batchnorm, and `_DropoutNd` of torch.nn.modules.dropout.  torch
2.10 to 2.14 have all of these names.  The public methods such as `named_parameters` leave out what
a module holds twice, and cannot look up a single name.

Without these dicts, unsharded parameters, buffers and experts are not found.  Without the call's
code, a draw is not assigned to its module.  Without the base classes, batch norms and dropouts do
not count as modules that compute differently in evaluation mode.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import CodeType
from typing import Any

import torch
from torch import nn

from pytest_trainsafe.compat.private import Capability

HELD = Capability("what a module holds itself is not seen")
CALLS = Capability("random draws are not assigned to modules")
BASES = Capability("modules that compute differently in evaluation mode are not known")


def own_parameters(module: nn.Module) -> Mapping[str, nn.Parameter | None]:
    """The parameters that a module holds itself, by the names of its attributes."""
    return _held(module, "_parameters")


def children_of(module: nn.Module) -> Mapping[str, nn.Module | None]:
    """The modules that a module holds itself, by the names of its attributes."""
    return _held(module, "_modules")


def own_buffers(module: nn.Module) -> Mapping[str, torch.Tensor | None]:
    """The buffers that a module holds itself, by the names of its attributes."""
    return _held(module, "_buffers")


def has_backward_hooks(module: nn.Module) -> bool:
    """Whether the program wants to know of each backward through a module."""
    return bool(_held(module, "_backward_hooks") or _held(module, "_backward_pre_hooks"))


def _held(module: nn.Module, name: str) -> Mapping[str, Any]:
    held: Mapping[str, Any] | None = vars(module).get(name)
    if held is None:
        HELD.lacks(f"Module.{name}")
        return {}
    return held


def _call_code() -> CodeType | None:
    called = CALLS.of("torch.nn", "Module._wrapped_call_impl")
    return getattr(called, "__code__", None)


#: The code that a call of any module runs first; None if it is not known.
CALL = _call_code()

_BatchNorm = BASES.of("torch.nn.modules.batchnorm", "_BatchNorm")
_Dropout = BASES.of("torch.nn.modules.dropout", "_DropoutNd")


def is_batch_norm(module: nn.Module) -> bool:
    """Whether a module normalises by the statistics of its batch, in any number of dimensions."""
    return _BatchNorm is not None and isinstance(module, _BatchNorm)


def dropout_of(module: nn.Module) -> float | None:
    """The probability of a dropout, in any number of dimensions; None for another module."""
    if _Dropout is None or not isinstance(module, _Dropout):
        return None
    rate: float = module.p
    return rate
