"""Programs of two ranks, in processes that share a group, observed as a script is."""

from __future__ import annotations

import importlib
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from pytest_trainsafe.judges.learn.columns.frame import Frame
from pytest_trainsafe.judges.learn.events.file import TableWriter, read_table
from pytest_trainsafe.judges.learn.inference.one_relation import learn_relation
from pytest_trainsafe.judges.learn.instrument.observation import Observation
from pytest_trainsafe.judges.learn.instrument.steps import Sample, Steps
from pytest_trainsafe.judges.learn.invariant import Invariant
from pytest_trainsafe.judges.learn.registry import BUILT_IN, load_relation
from pytest_trainsafe.judges.learn.run import ObservedRun
from pytest_trainsafe.launch import Launcher, Task, raise_for_failure
from tests.support.learn.split_ranks import AXES

STEPS = 4


class Scaling(nn.Module):
    """Scales what it gets by statistics of all that it has got, on this rank or on both."""

    size: Tensor

    def __init__(self, together: bool) -> None:
        super().__init__()
        self.register_buffer("size", torch.ones(4))
        self.together = together

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            new = x.detach().abs().mean(0)
            if self.together:
                dist.all_reduce(new)
            self.size += 0.1 * (new - self.size)
        return x / self.size


class Centres(nn.Module):
    """A loss with weights of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.centres = nn.Parameter(torch.randn(3, 2))

    def forward(self, given: Tensor) -> Tensor:
        return torch.cdist(given, self.centres).square().mean()


def replicas(seed: int, fault: str) -> None:
    """Two replicas under DistributedDataParallel, which clip by the norm of all gradients."""
    torch.manual_seed(seed)
    draw = torch.Generator().manual_seed(
        7 * seed + (0 if fault == "same data" else dist.get_rank())
    )
    net = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2))
    model = DistributedDataParallel(net)
    criterion: nn.Module = Centres()
    if fault != "unwrapped loss":
        criterion = DistributedDataParallel(criterion)
    parameters = [*model.parameters(), *criterion.parameters()]
    optimizer = torch.optim.SGD(parameters, lr=0.05)
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = criterion(model(torch.randn(8, 4, generator=draw)))
        loss.backward()
        norm = torch.stack(
            [each.grad.norm() for each in parameters if each.grad is not None]
        ).norm()
        factor = 0.1 / norm
        if fault == "own norm":
            factor = factor * (1 + dist.get_rank())
        for each in parameters:
            assert each.grad is not None
            each.grad *= factor
        optimizer.step()


def divided(seed: int, fault: str) -> None:
    """Two replicas with a loss of torch, which is divided by a number as `fault` says."""
    torch.manual_seed(seed)
    draw = torch.Generator().manual_seed(7 * seed + dist.get_rank())
    model: nn.Module = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2))
    if fault != "by hand":
        model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for _ in range(STEPS):
        optimizer.zero_grad()
        x = torch.randn(8, 4, generator=draw)
        loss = nn.functional.mse_loss(model(x), x[:, :2])
        (loss if fault == "plain" else loss / dist.get_world_size()).backward()
        if fault == "by hand":
            for each in model.parameters():
                dist.all_reduce(each.grad)
        optimizer.step()


def walkers(seed: int, fault: str) -> None:
    """Two replicas that reduce by hand, and scale by statistics of both."""
    torch.manual_seed(seed + (dist.get_rank() if fault == "own weights" else 0))
    draw = torch.Generator().manual_seed(
        7 * seed + (0 if fault == "same data" else dist.get_rank())
    )
    model = nn.Sequential(Scaling(together=fault != "own statistics"), nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for _ in range(STEPS):
        optimizer.zero_grad()
        model(torch.randn(8, 4, generator=draw)).square().mean().backward()
        for each in model.parameters():
            assert each.grad is not None
            dist.all_reduce(each.grad)
            each.grad /= dist.get_world_size()
        optimizer.step()


def owners(seed: int, fault: str) -> None:
    """Two ranks that share the work of an optimizer: each updates what it owns, and sends it."""
    torch.manual_seed(seed)
    draw = torch.Generator().manual_seed(7 * seed + dist.get_rank())
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2))
    every = list(model.parameters())
    mine = every[dist.get_rank() :: 2]
    optimizer = torch.optim.SGD(mine, lr=0.05)
    for _ in range(STEPS):
        model(torch.randn(8, 4, generator=draw)).square().mean().backward()
        squares = torch.zeros(())
        for each in every:
            assert each.grad is not None
            dist.all_reduce(each.grad)
            each.grad /= dist.get_world_size()
        for each in mine:
            assert each.grad is not None
            squares += each.grad.square().sum()
        if fault != "own norm":
            dist.all_reduce(squares)
        for each in mine:
            assert each.grad is not None
            each.grad *= 0.1 / squares.sqrt()
        optimizer.step()
        for at, each in enumerate(every):
            dist.broadcast(each.data, src=at % 2)
            each.grad = None


Program = Callable[[int, str], None]
Call = tuple[Program, int, str]


def runs_of(launcher: Launcher, calls: Sequence[Call]) -> list[ObservedRun]:
    """The observed runs of programs with a seed and a fault, in one pair of processes."""
    with tempfile.TemporaryDirectory() as folder:
        named = [(program.__module__, program.__name__, *rest) for program, *rest in calls]
        task = Task.of(_rank, named, folder, world_size=2)
        raise_for_failure(launcher.run(task, timeout=120, workdir=Path(folder) / "ranks"))
        return [
            ObservedRun(
                program.__name__,
                [read_table(Path(folder) / f"{at}.{rank}.bin", rank) for rank in range(2)],
                {"torch": torch.__version__.partition("+")[0]},
                f"seed {seed}",
            )
            for at, (program, seed, _) in enumerate(calls)
        ]


def rules_of(runs: Sequence[ObservedRun], *relations: str) -> list[Invariant]:
    """What `learn` learns of these relations, without the others: it learns each on its own."""
    frames = [(run.source, [Frame(table) for table in run.tables]) for run in runs]
    paths = [path for path in BUILT_IN if load_relation(path).name in relations]
    assert len(paths) == len(relations)
    return [each for path in paths for each in learn_relation(path, frames).invariants]


def _rank(calls: Sequence[tuple[str, str, int, str]], folder: str) -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    for at, (module, name, seed, fault) in enumerate(calls):
        program: Program = getattr(importlib.import_module(module), name)
        writer = TableWriter(Path(folder) / f"{at}.{rank}.bin", rank)
        fixed: dict[str, Any] = {
            "rank": rank,
            "world_size": 2,
            f"{AXES.get(name, 'dp')}_rank": rank,
        }
        steps = Steps(Sample(), automatic=True)
        with Observation(None, None, (writer,), steps, fixed).active():
            program(seed, fault)
        assert writer.close() is not None
    dist.destroy_process_group()
