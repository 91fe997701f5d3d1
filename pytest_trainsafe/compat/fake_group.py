"""A process group of one process that stands for a rank among many; it communicates nothing.

torch has it for its own tests, in a private module.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch.distributed as dist


@contextmanager
def fake_group(rank: int, ranks: int) -> Iterator[None]:
    """While it is active, the default process group says that this is `rank` of `ranks`.

    No other default group may exist.
    """
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", rank=rank, world_size=ranks, store=FakeStore())
    try:
        yield
    finally:
        dist.destroy_process_group()
