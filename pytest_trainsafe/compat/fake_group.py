"""A process group of one process that stands for a rank among many; it communicates nothing.

torch has it for its own tests, in a private module.

Needs `create_fakework` of torch.distributed._meta_registrations and `_scoped_library` of
torch.library.  Without them, collectives of several tensors at once are not captured.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import torch.distributed as dist

from pytest_trainsafe.compat.private import Capability

COALESCED = Capability("collectives of several tensors at once are not captured")

#: Collectives that torch can execute, but for which it has no shapes.
_COALESCED = ("allreduce_coalesced_", "allgather_into_tensor_coalesced_",
              "reduce_scatter_tensor_coalesced_")  # fmt: skip


@contextmanager
def fake_group(rank: int, ranks: int) -> Iterator[None]:
    """While it is active, the default process group says that this is `rank` of `ranks`.

    No other default group may exist.
    """
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", rank=rank, world_size=ranks, store=FakeStore())
    try:
        with _coalesced():
            yield
    finally:
        dist.destroy_process_group()


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
