"""Versions, views, local parts and addresses of tensors, and of the objects behind them.

Needs of tensors `_version`, which every write raises; `_base` and `_is_view`; `_local_tensor` of a
DTensor; `_cdata` of storages and generators, the address of the object in C++, which several Python
objects may share; `DisableTorchFunctionSubclass` of torch._C; `FakeTensor` of
torch._subclasses.fake_tensor; and `AsyncCollectiveTensor` of
torch.distributed._functional_collectives.  torch 2.10 to 2.14 have all of these names.

Without a version, a write is noticed only by what it changes elsewhere.  Without `_base`, the
gradient of an output that is a view is not corrected for later writes.  Without an address, each
Python object counts as an object of its own.
"""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from pytest_trainsafe.compat.private import Capability

VERSIONS = Capability("writes to tensors are not noticed by their versions")
VIEWS = Capability("views are not told from other tensors")
LOCAL = Capability("the local parts of DTensors are copied to be read")
ADDRESSES = Capability("each Python object counts as a storage or generator of its own")
SUBCLASSES = Capability("attributes of tensor subclasses are read by their own code")
FAKE = Capability("fake tensors are not told from others")
PENDING = Capability("results of collectives that were not waited for are not told from others")

#: A number that each write to a tensor's memory raises; 0 if that is off.
version_of: Callable[[torch.Tensor], int] = (
    operator.attrgetter("_version")
    if VERSIONS.of("torch", "Tensor._version") is not None
    else lambda tensor: 0
)

#: The tensor that a view was made of; None for a tensor that is no view, or if that is off.
base_of: Callable[[torch.Tensor], torch.Tensor | None] = (
    operator.attrgetter("_base")
    if VIEWS.of("torch", "Tensor._base") is not None
    else lambda tensor: None
)

#: Whether a tensor is a view.
is_view: Callable[[torch.Tensor], bool] = VIEWS.of("torch", "Tensor._is_view") or (
    lambda tensor: False
)

#: A context in which attributes of tensors are read without `__torch_function__` of subclasses.
without_torch_function: Callable[[], AbstractContextManager[object]] = (
    SUBCLASSES.of("torch._C", "DisableTorchFunctionSubclass") or nullcontext
)

_FakeTensor = FAKE.of("torch._subclasses.fake_tensor", "FakeTensor")

#: The classes of tensors that hold their values themselves.
_PLAIN = frozenset({torch.Tensor, torch.nn.Parameter})

_MISSING = object()


def is_fake_class(cls: type) -> bool:
    """Whether tensors of a class have shapes but no values."""
    return _FakeTensor is not None and issubclass(cls, _FakeTensor)


def is_pending(tensor: torch.Tensor) -> bool:
    """Whether this is the result of a functional collective that has not been waited for.

    `DTensor.to_local` may return one, and so may modules of torch's tensor parallelism.
    """
    collectives = sys.modules.get("torch.distributed._functional_collectives")
    if collectives is None:  # then there was no such collective
        return False
    cls = getattr(collectives, "AsyncCollectiveTensor", None)
    if cls is None:
        PENDING.lacks(f"{collectives.__name__}.AsyncCollectiveTensor")
        return False
    return isinstance(tensor, cls)


def local_part(value: Any, default: Any = None) -> Any:
    """The tensor that a DTensor, or a class like it, holds on this rank; else `default`."""
    if type(value) in _PLAIN:
        return default
    local = getattr(value, "_local_tensor", _MISSING)
    if local is not _MISSING:
        return local
    if isinstance(value, torch.Tensor) and hasattr(value, "to_local"):
        LOCAL.lacks("DTensor._local_tensor")
        whole: Any = value.detach()
        return whole.to_local()
    return default


def address_of(held: torch.UntypedStorage | torch.Generator) -> int:
    """The address of the object in C++; torch makes several Python objects for one of them."""
    address: int | None = getattr(held, "_cdata", None)
    if address is None:
        ADDRESSES.lacks(f"{type(held).__name__}._cdata")
        return id(held)
    return address


def bytes_of(tensor: torch.Tensor) -> tuple[int, int] | None:
    """The addresses from the first to after the last byte of a tensor; None if it has no memory."""
    if not tensor.numel():
        return None
    try:
        first = tensor.data_ptr()
    except (RuntimeError, NotImplementedError):  # fake and functional tensors
        return None
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    last = sum((size - 1) * stride for size, stride in steps)
    return first, first + (last + 1) * tensor.element_size()
