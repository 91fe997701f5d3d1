"""An empty test in the way DeepSpeed tests ranks.

Its `DistributedTest` is in no package, only in its repository (tests/unit/common.py), so this does
what that does at its defaults: a pool of processes made for one test by a fork server that has
imported nothing, a process group over a file, a barrier, and the end of both.  What it also
does, and this does not, is to sleep half a second after every test.
"""

from __future__ import annotations

import multiprocessing
import os
import tempfile

import deepspeed
import deepspeed.comm


def rank(number: int, ranks: int, port: int, file: str) -> int:
    """What each process of the pool runs around the test, which is empty."""
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    os.environ |= {"RANK": str(number), "LOCAL_RANK": str(number)}
    os.environ |= {"WORLD_SIZE": str(ranks), "LOCAL_SIZE": str(ranks)}
    deepspeed.init_distributed(
        dist_backend="gloo",
        init_method=f"file://{file}",
        rank=number,
        world_size=ranks,
        verbose=False,
    )
    deepspeed.comm.barrier()
    return number


def end() -> None:
    """What each process does before the pool is closed."""
    if deepspeed.comm.is_initialized():
        deepspeed.comm.barrier()
        deepspeed.comm.destroy_process_group()


def run(ranks: int) -> None:
    """Run the test once."""
    context = multiprocessing.get_context("forkserver")
    with tempfile.TemporaryDirectory() as folder:
        pool = context.Pool(processes=ranks)
        each = [(number, ranks, 29500, os.path.join(folder, "store")) for number in range(ranks)]
        found = pool.starmap_async(rank, each).get(300)
        assert found == list(range(ranks)), found
        pool.starmap(end, [()] * ranks)
        pool.close()
        pool.join()
