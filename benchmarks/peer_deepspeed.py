"""Runs a test on ranks in the way DeepSpeed does in its own tests.

DeepSpeed's class `DistributedTest` is in no package, only in its repository (tests/unit/common.py).
So this file repeats what the class does by default: a fork server that has imported nothing starts
a pool of processes for one test; these create a process group over a file, wait at a barrier, run
the test, and end. Unlike the class, it does not sleep half a second after every test. The op that
DeepSpeed compiles for CPU ranks is turned off, as in the ranks of this plugin.
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
    """Run in each process of the pool: sets up communication, then runs the test."""
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
    """Run in each process before the pool is closed: ends communication."""
    if deepspeed.comm.is_initialized():
        deepspeed.comm.barrier()
        deepspeed.comm.destroy_process_group()


def nothing() -> None:
    """The empty test."""


@contextlib.contextmanager
def unseen_main() -> Iterator[None]:
    """Hides the main module in this context, so that new processes do not import the benchmark.

    In a pytest run they would not import pytest's main module either.
    """
    with mock.patch.dict(vars(sys.modules["__main__"]), __file__=None, __spec__=None):
        yield


def run(ranks: int, test: Callable[[], None] = nothing) -> None:
    """Run a test once; it must be a function that the pool's processes can import."""
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
