"""What the ranks of the network tests run."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import TCPStore
from torch.distributed.device_mesh import init_device_mesh

#: A key of the ranks' store that another user tries to read and to change.
KEY, VALUE = "written by a rank", b"a rank's own"


def meet_twice(folder: str) -> str:
    """Meet, wait for the file `go`, and set up all over again what goes through the store.

    Leaves in `folder` facts about the ranks, and the value of KEY, which another user may change.
    """
    dist.init_process_group("gloo", timeout=timedelta(seconds=30))
    dist.all_reduce(torch.ones(2))
    rank, store = dist.get_rank(), own_store()
    if rank == 0:
        store.set(KEY, VALUE)  # type: ignore[arg-type]  # bytes, too
    facts: dict[str, int | str] = {"pid": os.getpid(), "above": os.getppid()}
    facts["port"] = int(os.environ["MASTER_PORT"])
    facts["run"] = os.environ["TORCHELASTIC_RUN_ID"]
    write(Path(folder) / f"ready-{rank}", json.dumps(facts).encode())
    while not (Path(folder) / "go").exists():
        time.sleep(0.01)
    write(Path(folder) / f"found-{rank}", store.get(KEY))
    with contextlib.suppress(Exception):  # fails if other values are in the store
        dist.new_group([0, 1], timeout=timedelta(seconds=2))
        init_device_mesh("cpu", (2,), mesh_dim_names=("dp",))
        dist.monitored_barrier(timeout=timedelta(seconds=2))
    return "done"


def own_store() -> TCPStore:
    """A connection of this rank's own to the store that torchrun's variables name."""
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    return TCPStore(host, port, is_master=False, timeout=timedelta(seconds=10))


def write(path: Path, content: bytes) -> None:
    """Write a file that is there only once it is whole."""
    path.with_suffix(".unfinished").write_bytes(content)
    path.with_suffix(".unfinished").rename(path)


def connect_outside() -> None:
    """Connect to an address that is set aside for documentation: nothing answers there."""
    socket.create_connection(("192.0.2.1", 80), timeout=5).close()


def raise_something_else() -> None:
    """A failure that has nothing to do with a network."""
    raise ValueError("no network in this")
