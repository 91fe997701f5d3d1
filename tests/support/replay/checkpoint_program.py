"""A training that saves with `TrainingCheckpoint`, at any number of dp ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from pytest_trainsafe import TrainingCheckpoint, per_example_dropout, per_example_keys

BATCHES, STEPS, WIDTH = 4, 4, 4


class Reader:
    """A loader whose state is the number of the next batch."""

    def __init__(self) -> None:
        self.next = 0

    def state_dict(self) -> dict[str, int]:
        return {"next": self.next}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.next = state["next"]


def train(ctx: Any, fault: str = "", noise: bool = False) -> None:
    """Train with momentum and per-example dropout; `noise` adds draws from the rank's generator."""
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 1))
    ctx.initialize(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, foreach=False)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=3)
    reader = Reader()
    generator = torch.Generator().manual_seed(ctx.seed + ctx.rank)
    parts: dict[str, Any] = {"schedule": schedule}
    if fault != "position lost":
        parts["reader"] = reader
    checkpoint = TrainingCheckpoint(model, optimizer, shared=parts, generators={"own": generator})
    ctx.watch(model, optimizer)
    with ctx.load() as folder:
        if folder is not None:
            checkpoint.load(folder)
            if noise:
                assert checkpoint.load_rng(folder)
            if fault == "draws again":
                torch.rand(1, generator=generator)
    for _ in ctx.steps(STEPS):
        with ctx.step():
            numbers = list(ctx.microbatches(BATCHES))
            for index in numbers:
                with ctx.microbatch(index):
                    example = reader.next * BATCHES + index
                    x = torch.full((1, WIDTH), example / 8 - 1.0, dtype=ctx.dtype)
                    x = per_example_dropout(x, 0.5, per_example_keys(0, [example]))
                    if noise:
                        x = x + torch.randn(1, WIDTH, generator=generator, dtype=ctx.dtype)
                    loss = model(x).square().mean() / BATCHES
                    loss.backward()
                    ctx.loss(loss)
            if len(numbers) < BATCHES:
                for parameter in model.parameters():
                    dist.all_reduce(parameter.grad, group=ctx.group("dp"))
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()
            reader.next += 1
        with ctx.save() as folder:
            if folder is not None:
                checkpoint.save(folder)


def plain(ctx: Any, after_step: Callable[[], object] = lambda: None) -> None:
    """Train without checkpoint code: functions of the test save and load the state."""
    model = nn.Linear(WIDTH, 1)
    ctx.initialize(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, foreach=False)
    ctx.watch(model, optimizer)
    for step in ctx.steps(STEPS):
        with ctx.step():
            numbers = list(ctx.microbatches(2))
            for index in numbers:
                with ctx.microbatch(index):
                    x = torch.linspace(-index, step + 1, WIDTH, dtype=ctx.dtype)
                    loss = model(x[None]).square().mean()
                    loss.backward()
                    ctx.loss(loss)
            if len(numbers) < 2:
                for parameter in model.parameters():
                    dist.all_reduce(parameter.grad, group=ctx.group("dp"))
            optimizer.step()
            optimizer.zero_grad()
        after_step()


def save(folder: str, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    if not dist.is_initialized() or dist.get_rank() == 0:
        torch.save([model.state_dict(), optimizer.state_dict()], f"{folder}/state.pt")


def load(folder: str, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    weights, state = torch.load(f"{folder}/state.pt")
    model.load_state_dict(weights)
    optimizer.load_state_dict(state)


def load_weights(folder: str, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    model.load_state_dict(torch.load(f"{folder}/state.pt")[0])
