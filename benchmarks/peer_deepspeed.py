"""A test of ranks in the way DeepSpeed tests them.

Its `DistributedTest` is in no package, only in its repository (tests/unit/common.py), so this does
what that does at its defaults: a pool of processes made for one test by a fork server that has
imported nothing, a process group over a file, a barrier, the test, and the end of all.  What it
also does, and this does not, is to sleep half a second after every test.  The op that it compiles
for CPU ranks is turned off, as in our ranks.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from unittest import mock

import deepspeed
import deepspeed.comm


def rank(test: Callable[[], None], number: int, ranks: int, port: int, file: str) -> int:
    """What each process of the pool runs around the test."""
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    os.environ |= {"RANK": str(number), "LOCAL_RANK": str(number)}
    os.environ |= {"WORLD_SIZE": str(ranks), "LOCAL_SIZE": str(ranks)}
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    deepspeed.init_distributed(
        dist_backend="gloo",
        init_method=f"file://{file}",
        rank=number,
        world_size=ranks,
        verbose=False,
    )
    deepspeed.comm.barrier()
    test()
    return number


def end() -> None:
    """What each process does before the pool is closed."""
    if deepspeed.comm.is_initialized():
        deepspeed.comm.barrier()
        deepspeed.comm.destroy_process_group()


def nothing() -> None:
    """The empty test."""


@contextlib.contextmanager
def unseen_main() -> Iterator[None]:
    """Let new processes not import the benchmark, as they would not import pytest's own main."""
    with mock.patch.dict(vars(sys.modules["__main__"]), __file__=None, __spec__=None):
        yield


def run(ranks: int, test: Callable[[], None] = nothing) -> None:
    """Run a test once: a function that the pool's processes can import."""
    context = multiprocessing.get_context("forkserver")
    with tempfile.TemporaryDirectory() as folder:
        with unseen_main():
            pool = context.Pool(processes=ranks)
        each = [(number, ranks, 29500, os.path.join(folder, "store")) for number in range(ranks)]
        found = pool.starmap_async(partial(rank, test), each).get(300)
        assert found == list(range(ranks)), found
        pool.starmap(end, [()] * ranks)
        pool.close()
        pool.join()
