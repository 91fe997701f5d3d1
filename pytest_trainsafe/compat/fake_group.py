"""A process group of one process that stands for a rank among many; it communicates nothing.

torch has it for its own tests, in a private module.

Needs `create_fakework` of torch.distributed._meta_registrations and `_scoped_library` of
torch.library.  Without them, collectives of several tensors at once are not captured.

Needs `_clear_DTensor_sharding_propagator_cache` of torch._C, if DTensor is used.  Without it,
operators on DTensors may be captured as they are on the rank that was captured before.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import torch.distributed as dist

from pytest_trainsafe.compat.private import Capability

COALESCED = Capability("collectives of several tensors at once are not captured")
SHARDINGS = Capability("operators on DTensors are captured as on the rank before")

#: Collectives that torch can execute, but for which it has no shapes.
_COALESCED = ("allreduce_coalesced_", "allgather_into_tensor_coalesced_",
              "reduce_scatter_tensor_coalesced_")  # fmt: skip
_TENSOR = "torch.distributed.tensor"
_REMEMBERING = type(functools.cache(len))


@contextmanager
def fake_group(rank: int, ranks: int) -> Iterator[None]:
    """While it is active, the default process group says that this is `rank` of `ranks`.

    No other default group may exist.
    """
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", rank=rank, world_size=ranks, store=FakeStore())
    _forget_shardings()
    try:
        with _coalesced():
            yield
    finally:
        _forget_shardings()
        dist.destroy_process_group()


def _forget_shardings() -> None:
    """Empties what DTensor remembers of meshes: equal ones of two ranks are one key.

    A part of a tensor would be that of the first rank on all of them.
    """
    if _TENSOR not in sys.modules:
        return
    clear = SHARDINGS.of("torch._C", "_clear_DTensor_sharding_propagator_cache")
    if clear is not None:
        clear()
    for each in _caches():
        each.cache_clear()


def _caches() -> Iterator[Any]:
    """The caches of DTensor's modules, of their classes, and of the instances that these hold.

    Python's garbage collector does not list objects that were frozen, as those of every module are
    that was imported before the tests.
    """
    seen: set[int] = set()
    names = [name for name in tuple(sys.modules) if name.startswith(_TENSOR)]
    waiting = [value for name in names for value in tuple(vars(sys.modules[name]).values())]
    while waiting:
        found = waiting.pop()
        if id(found) in seen or not str(getattr(found, "__module__", "")).startswith(_TENSOR):
            continue
        seen.add(id(found))
        if type(found) is _REMEMBERING:
            yield found
        else:
            waiting += getattr(found, "__dict__", {}).values()
            waiting.append(getattr(found, "__wrapped__", None))  # A static method wraps one.


@contextmanager
def _coalesced() -> Iterator[None]:
    """Gives collectives of several tensors a kernel for tensors without values."""
    work = COALESCED.of("torch.distributed._meta_registrations", "create_fakework")
    scoped = COALESCED.of("torch.library", "_scoped_library")
    if work is None or scoped is None:
        yield
        return

    def kernel(*_: Any) -> Any:
        return work((), return_first_arg=False)

    with scoped("c10d", "IMPL") as library:
        for name in _COALESCED:
            with suppress(RuntimeError):  # A release that has a kernel keeps it.
                library.impl(name, kernel, "Meta")
        yield
