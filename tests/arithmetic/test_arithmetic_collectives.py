"""Exact numbers between real ranks: collectives, and torch's own ways to train in parallel."""

import warnings

import pytest
import torch
from torch import nn
from torch.nn import functional

from pytest_trainsafe.arithmetic import Doubles, ExactMode, Residues
from tests.support.launch.in_turn import in_turn


def reals(seed, *shape):
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def twice(program):
    """A program of a mode, run on doubles and then on residues with the doubles' decisions."""
    doubles = Doubles()
    program(ExactMode(doubles))
    return program(ExactMode(Residues(0, doubles.decisions.replay())))


def collectives(mode):
    """For each collective, whether its result is that of the field on this rank."""
    import torch.distributed as dist
    from torch.distributed import _functional_collectives as functional_collectives

    rank, group = dist.get_rank(), dist.group.WORLD
    assert group is not None
    inputs = [mode.enter(reals(seed, 4)) for seed in range(2)]
    mine = inputs[rank]
    part = slice(2 * rank, 2 * rank + 2)
    results = {}
    with mode:
        total, largest = inputs[0] + inputs[1], torch.maximum(*inputs)
        for name, op, right in (
            ("sum", dist.ReduceOp.SUM, total),
            ("avg", dist.ReduceOp.AVG, total / 2),
            ("max", dist.ReduceOp.MAX, largest),
        ):
            x = mine.clone()
            dist.all_reduce(x, op)
            results[f"all_reduce {name}"] = x, right
        x = mine.clone()
        dist.all_reduce(x, async_op=True).wait()
        results["all_reduce async"] = x, total
        x = mine.clone()
        dist.reduce(x, 1)
        results["reduce"] = x, total if rank == 1 else mine
        x = torch.empty(2, dtype=torch.float64)
        dist.reduce_scatter_tensor(x, mine)
        results["reduce_scatter_tensor"] = x, total[part]
        x = torch.empty(2, dtype=torch.float64)
        dist.reduce_scatter(x, list(mine.chunk(2)))
        results["reduce_scatter"] = x, total[part]
        x = torch.empty(8, dtype=torch.float64)
        dist.all_gather_into_tensor(x, mine)
        results["all_gather_into_tensor"] = x, torch.cat(inputs)
        x = torch.empty(4, dtype=torch.float64)
        dist.all_to_all_single(x, mine)
        results["all_to_all_single"] = x, torch.cat([each[part] for each in inputs])
        x = mine.clone()
        dist.broadcast(x, 1)
        results["broadcast"] = x, inputs[1]
        for kind, right in (("sum", total), ("avg", total / 2)):
            x = functional_collectives.all_reduce(mine, kind, group)
            results[f"functional all_reduce {kind}"] = x * 1, right
        x = functional_collectives.reduce_scatter_tensor(mine, "sum", 0, group)
        results["functional reduce_scatter"] = x * 1, total[part]
        x = functional_collectives.all_gather_tensor(mine, 0, group)
        results["functional all_gather"] = x * 1, torch.cat(inputs)
    return {name: bool((x == right).all()) for name, (x, right) in results.items()}


def gradients(model, x, target):
    functional.mse_loss(model(x), target).backward()
    return [each.grad for each in model.parameters()]


def data_parallel(mode, synchronous=True):
    """Whether the mean over two ranks' halves of a batch has the gradients of the batch."""
    import contextlib

    import torch.distributed as dist

    torch.manual_seed(0)
    models = [nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()]
    models.append(nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double())
    models[1].load_state_dict(models[0].state_dict())
    for model in models:
        mode.enter_(*model.parameters())
    x, target = mode.enter(reals(0, 4, 3)), mode.enter(reals(1, 4, 2))
    rows = slice(2 * dist.get_rank(), 2 * dist.get_rank() + 2)
    with mode:
        right = gradients(models[0], x, target)
        parallel = nn.parallel.DistributedDataParallel(models[1])
        with contextlib.nullcontext() if synchronous else parallel.no_sync():
            found = gradients(parallel, x[rows], target[rows])
    return all(bool((a == b).all()) for a, b in zip(found, right, strict=True))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(4), nn.Linear(4, 8), nn.Linear(8, 4)
        self.double()

    def forward(self, x):
        return x + self.down(functional.gelu(self.up(self.norm(x))))


def trained(mode, kind, clip):
    """Parameters after two steps of AdamW: of one device, of FSDP2, or of a tensor parallel."""
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    torch.manual_seed(0)
    model = Block()
    mode.enter_(*model.parameters())
    x = mode.enter(reals(0, 4, 4))
    with mode:
        if kind.startswith("fsdp"):
            mesh = init_device_mesh("cpu", (2,))
            fully_shard(model.up, mesh=mesh)
            fully_shard(model, mesh=mesh)
            rank = 0 if kind == "fsdp with the same data" else dist.get_rank()
            x = x[2 * rank : 2 * rank + 2]
        elif kind == "tensor parallel":
            plan = {"up": ColwiseParallel(), "down": RowwiseParallel()}
            parallelize_module(model, init_device_mesh("cpu", (2,)), plan)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        for _ in range(2):
            optimizer.zero_grad()
            (model(x) ** 2).mean().backward()
            if clip:
                nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            optimizer.step()
        whole = [getattr(each, "full_tensor", lambda e=each: e)() for each in model.parameters()]
    return [each.detach() for each in whole]


def same(kind, clip):
    """Whether both sides train the same; each takes the decisions of its own real run."""
    one, other = (twice(lambda mode, k=k: trained(mode, k, clip)) for k in ("one device", kind))
    return all(bool((a == b).all()) for a, b in zip(one, other, strict=True))


def results():
    """What is exact between the two ranks of the default group, by name."""
    torch.set_default_dtype(torch.float64)
    found = twice(collectives)
    found["DistributedDataParallel"] = twice(data_parallel)
    found["no_sync is noticed"] = not twice(lambda mode: data_parallel(mode, False))
    found["fully_shard"] = same("fsdp", True)
    found["the same data is noticed"] = not same("fsdp with the same data", True)
    found["tensor parallel"] = same("tensor parallel", False)
    return found


def on_rank():
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    try:
        return results()
    finally:
        dist.destroy_process_group()


@pytest.mark.parametrize("launcher", ["processes", "threads"])
def test_collectives_and_torchs_own_parallel_training_are_exact(launcher, torchrun_group):
    if launcher == "threads":
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # newer releases of torch rename collectives
            ranks = in_turn(results, 2)
    else:
        ranks = torchrun_group.run(on_rank, world_size=2)
    assert [[name for name, right in each.items() if not right] for each in ranks] == [[], []]
    assert len(ranks[0]) == 19
