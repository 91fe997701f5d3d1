"""What the ranks of the launch tests run."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from pytest_trainsafe.launch import GroupResult

#: The launchers whose ranks are processes, which gloo connects.
PROCESSES = [pytest.param("torchrun", marks=pytest.mark.slow), "warm"]

#: the fixture `launch`
Launch = Callable[..., GroupResult]


def echo(*args: Any, **kwargs: Any) -> dict[str, Any]:
    """Return the arguments that arrived, and this rank's environment."""
    dist.init_process_group("gloo")
    total = torch.tensor([float(dist.get_rank() + 1)], dtype=torch.float64)
    dist.all_reduce(total)
    dist.destroy_process_group()
    print(f"rank {os.environ['RANK']} says hello")
    return {
        "args": args,
        "kwargs": kwargs,
        "rank": int(os.environ["RANK"]),
        "total": total,
        "environ": {name: os.environ.get(name, "") for name in ENVIRONMENT},
        "cwd": os.getcwd(),
        "threads": torch.get_num_threads(),
    }


ENVIRONMENT = [
    "WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "TORCHELASTIC_MAX_RESTARTS",
    "TORCHELASTIC_USE_AGENT_STORE",
    "MASTER_ADDR",
    "OMP_NUM_THREADS",
    "ADDED",
]


def join() -> int:
    """Join the group and return this rank."""
    dist.init_process_group("gloo")
    return dist.get_rank()


def raise_on_rank_1() -> None:
    """Rank 1 raises; rank 0 waits for it."""
    if join() == 1:
        print("about to fail", file=sys.stderr)
        raise ValueError("the answer is not 42")
    dist.all_reduce(torch.ones(4))


def rank_1_never_comes() -> None:
    """Ranks 0 and 2 wait in a collective for rank 1, which sits in a function of its own."""
    if join() == 1:
        sit()
    dist.all_reduce(torch.ones(4))


def sit() -> None:
    """Never return."""
    while True:
        time.sleep(3600)


def silent_mismatches() -> None:
    """Four mistakes that gloo answers with garbage, each in a group of its own."""
    rank = join()
    groups = [dist.new_group([0, 1]) for _ in range(4)]
    dist.all_reduce(torch.ones(4), op=dist.ReduceOp.SUM, group=groups[0])
    dist.all_reduce(torch.ones(4), op=[dist.ReduceOp.SUM, dist.ReduceOp.MAX][rank], group=groups[0])
    dist.all_reduce(torch.ones(4, dtype=[torch.float32, torch.int32][rank]), group=groups[1])
    from pytest_trainsafe.launch.collectives.ledger import name_tensor

    weights = {name: torch.ones(4) for name in ("first.weight", "second.weight")}
    for name, weight in weights.items():
        name_tensor(weight, name)
    for name in sorted(weights, reverse=rank == 1):
        dist.all_reduce(weights[name].view(2, 2), group=groups[2])
    if rank == 0:
        dist.send(torch.ones(4), dst=1, group=groups[3])
    else:
        dist.recv(torch.zeros(8), src=0, group=groups[3])


def skips_one_of_equal_shapes() -> None:
    """Rank 0 leaves out a call in the second of three steps, whose calls all look the same."""
    rank = join()
    for step in range(3):
        if rank == 0:
            dist.all_reduce(torch.zeros(4))
        else:
            dist.all_reduce(torch.ones(4))
        if rank or step != 1:
            dist.all_reduce(torch.zeros(4))  # forward
        dist.all_reduce(torch.zeros(4))  # backward


def other_world() -> None:
    """Each rank uses another world size."""
    dist.init_process_group("gloo", world_size=[2, 3][int(os.environ["RANK"])])
    dist.barrier()


def spawn_grandchildren(notes: str, then: str) -> None:
    """Leave two grandchildren behind, one in a session of its own; note every process id."""
    join()
    pids = [os.getpid()]
    for own_session in (False, True):
        command = [sys.executable, "-c", "import time; time.sleep(3600)"]
        pids.append(subprocess.Popen(command, start_new_session=own_session).pid)
    file = os.open(notes, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(file, "".join(f"{pid}\n" for pid in pids).encode())
    os.close(file)
    if then == "sit":
        sit()


def own_pid() -> int:
    """The process that a rank runs in."""
    return os.getpid()


def rank_0_is_early(folder: str) -> str:
    """Rank 0 returns at once; rank 1 sees its outcome and then its process."""
    rank = int(os.environ["RANK"])
    pid = Path(folder) / "pid-of-rank-0"
    if rank == 0:
        pid.write_text(str(os.getpid()))
        return "early"
    while not list(Path(folder).glob("group-*/rank0/result.msgpack")):
        time.sleep(0.01)
    os.kill(int(pid.read_text()), 0)  # raises where there is no such process
    return "rank 0 still lives"


def full_ledger() -> None:
    """The disk is full when rank 1 writes its next collective down."""
    if join() == 1:
        from pytest_trainsafe.launch.collectives import ledger

        full = os.open("/dev/full", os.O_WRONLY)
        os.dup2(full, ledger.current().fd)
    dist.all_reduce(torch.ones(4))


def full_result() -> str:
    """The disk is full when rank 1 writes its outcome."""
    if join() == 1:
        from pytest_trainsafe.launch.collectives import ledger

        (ledger.current().path.parent / "result.msgpack.unfinished").symlink_to("/dev/full")
    return "fine"


def every_collective() -> None:
    """Every collective, used correctly; four ranks, in the world and in pairs.

    Some are issued by C++: those of DDP, also with fewer batches on some ranks.
    """
    rank = join()
    low, high = dist.new_group([0, 1]), dist.new_group([2, 3])
    for group in (None, low if rank < 2 else high):
        world = dist.get_world_size(group)
        me = dist.get_rank(group)
        first = dist.get_global_rank(group, 0) if group is not None else 0
        row = torch.full((2,), float(rank))
        rows = torch.zeros(world * 2)
        dist.all_reduce(row.clone(), op=dist.ReduceOp.MAX, group=group, async_op=True).wait()
        # one rank's scalar is another one's vector of one element
        dist.broadcast(torch.zeros(()) if me == 0 else torch.zeros(1), src=first, group=group)
        dist.reduce(row.clone(), dst=first, op=dist.ReduceOp.SUM, group=group)
        dist.all_gather([torch.zeros(2) for _ in range(world)], row, group=group)
        dist.all_gather_into_tensor(rows, row, group=group)
        dist.reduce_scatter_tensor(row, rows, group=group)
        dist.reduce_scatter(row, [row.clone() for _ in range(world)], group=group)
        # rank i gives j + 1 elements to rank j, which takes as many from each
        gives, takes = list(range(1, world + 1)), [me + 1] * world
        dist.all_to_all_single(
            torch.zeros(sum(takes)), torch.zeros(sum(gives)), takes, gives, group=group
        )
        parts = [torch.zeros(2) for _ in range(world)] if me == 0 else None
        dist.gather(row, parts, dst=first, group=group)
        dist.scatter(row, parts, src=first, group=group)
        dist.barrier(group=group)
        dist.all_gather_object([None] * world, "x" * rank, group=group)
        dist.broadcast_object_list([rank], src=first, group=group)
    up, down = (rank + 1) % 4, (rank - 1) % 4
    # neighbours of a pipeline, with buffers of another shape than what is sent
    ops = [
        dist.P2POp(dist.isend, torch.zeros(2, 3), up),
        dist.P2POp(dist.irecv, torch.zeros(6), down),
    ]
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    if rank == 0:
        dist.send(torch.zeros(3), dst=3, tag=7)
    if rank == 3:
        dist.recv(torch.zeros(3), tag=7)  # from any source
    functional_collectives(rank)
    wrapped_models(rank)
    dist.monitored_barrier()
    dist.destroy_process_group()


def wrapped_models(rank: int) -> None:
    """DDP and FSDP2 in their usual uses, with gradients of several dtypes."""
    from torch.distributed.fsdp import fully_shard
    from torch.nn.parallel import DistributedDataParallel

    layers = (torch.nn.Linear(3, 5), torch.nn.Linear(5, 1), torch.nn.Linear(3, 1))
    model: Any = torch.nn.ModuleDict(dict(zip("abc", layers, strict=True)))
    model["c"].double()
    wrapped = DistributedDataParallel(Branches(model), find_unused_parameters=True)
    with wrapped.no_sync():
        wrapped(torch.ones(2, 3)).sum().backward()
    with wrapped.join():
        for batch in range(1 + rank % 2):
            wrapped(torch.ones(2, 3) + batch).sum().backward()
    sharded: Any = torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.Linear(5, 1))
    for layer in (*sharded, sharded):
        fully_shard(layer)  # 5 rows and 1 row on four ranks
    sharded(torch.ones(2, 3)).sum().backward()


class Branches(torch.nn.Module):
    """Uses one branch of two on odd batches."""

    def __init__(self, layers: Any) -> None:
        super().__init__()
        self.layers = layers

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.layers["b"](self.layers["a"](x)).double()
        total: torch.Tensor = hidden if x[0, 0] > 1 else hidden + self.layers["c"](x.double())
        return total


def ddp_of_two_dtypes() -> None:
    """A parameter is bfloat16 on rank 0 and float16 on rank 1: gloo moves the bytes as they are."""
    from torch.nn.parallel import DistributedDataParallel

    rank = join()
    model = torch.nn.Linear(3, 5).to([torch.bfloat16, torch.float16][rank])
    DistributedDataParallel(model)


def ddp_backward_too_many() -> None:
    """Rank 0 reduces its gradients three times, rank 1 fails before its third."""
    from torch.nn.parallel import DistributedDataParallel

    rank = join()
    model = DistributedDataParallel(torch.nn.Linear(3, 5))
    for _ in range(3 - rank):
        model(torch.ones(2, 3)).sum().backward()
    if rank == 1:
        raise ValueError("no third batch")


def no_flight_recorder() -> None:
    """As in a torch that has no flight recorder."""
    inner: Any = getattr(torch._C, "_distributed_c10d")  # noqa: B009 - mypy does not know it
    del inner._dump_fr_trace_json
    join()
    dist.all_reduce(torch.ones(4))


def functional_collectives(rank: int) -> None:
    """DTensor's, forward and backward, with parts of different sizes."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    whole = torch.arange(30.0).reshape(5, 6).requires_grad_()
    sharded = distribute_tensor(whole, mesh, [Shard(0), Shard(1)])
    product: Any = sharded @ sharded.t()
    loss = product.redistribute(mesh, [Replicate(), Replicate()]).sum()
    loss.backward()
    assert rank == dist.get_rank()
