"""A training that saves and loads all of its state, and variants that do not restore one part.

Every fault but "draws while it saves" is in the code that loads the checkpoint, so all of them
share the Runs that are not resumed.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import torch
import torch.distributed as dist
from torch import nn
from torch.amp import GradScaler
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from pytest_trainsafe.frameworks import BUILT_IN
from pytest_trainsafe.launch.loading import load_function
from pytest_trainsafe.launch.task import Function
from pytest_trainsafe.record import program
from pytest_trainsafe.record.assignment import Assignment
from pytest_trainsafe.trace.run_spec import Resume, RunSpec, arguments_of
from pytest_trainsafe.trace.writer import manifest_of, write_manifest
from tests.support.replay import checkpoint_program

#: Steps of an epoch, of the whole training, and before the checkpoint, which is in epoch 1.
PER_EPOCH, STEPS, BEFORE = 3, 6, 4

WIDTH, BATCH = 6, 2


class Model(nn.Module):
    """Two linear layers with dropout, a buffer, and a counter that is not in the state_dict."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 1)
        self.drop = nn.Dropout(0.5)
        self.average: torch.Tensor
        self.register_buffer("average", torch.zeros(WIDTH))
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        x = self.first(x)
        with torch.no_grad():
            self.average.lerp_(x.mean(0), 0.1)
        return self.last(self.drop(x - self.average)) * (1 + self.calls / 64)


class Training:
    """The objects of a training, and its position in the data."""

    def __init__(self, ctx: Any, fault: str) -> None:
        self.ctx, self.fault = ctx, fault
        ranks = ctx.point.size("dp")
        self.model = Model()
        ctx.initialize(self.model)
        # foreach=False: the foreach implementation computes the same, and is slow to import.
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.01, foreach=False)
        self.schedule = torch.optim.lr_scheduler.LambdaLR(
            self.optimizer, lambda step: min(1.0, (step + 1) / 8)
        )
        self.scaler = GradScaler("cpu", init_scale=16.0, growth_interval=3)
        examples = torch.arange(PER_EPOCH * BATCH * ranks * WIDTH, dtype=ctx.dtype)
        self.sampler: DistributedSampler[Any] = DistributedSampler(
            TensorDataset(examples.reshape(-1, WIDTH).sin()), ranks, ctx.rank, seed=ctx.seed
        )
        self.loader = DataLoader(self.sampler.dataset, BATCH, sampler=self.sampler)
        self.epoch = self.position = 0
        self.batches: Iterator[list[torch.Tensor]] | None = None
        torch.manual_seed(ctx.seed * 100 + ctx.rank)

    def batch(self) -> torch.Tensor:
        if self.batches is None:
            self.open_epoch()
        assert self.batches is not None
        self.position += 1
        [x] = next(self.batches)
        if self.position == PER_EPOCH:
            self.epoch, self.position, self.batches = self.epoch + 1, 0, None
        return x

    def open_epoch(self) -> None:
        self.sampler.set_epoch(self.epoch)
        self.batches = iter(self.loader)
        for _ in range(self.position):
            next(self.batches)

    def parts(self) -> dict[str, Any]:
        return {
            "model": self.model,
            "optimizer": self.optimizer,
            "schedule": self.schedule,
            "scaler": self.scaler,
        }

    def save(self, folder: Path) -> None:
        state = {name: part.state_dict() for name, part in self.parts().items()}
        state |= {"calls": self.model.calls, "data": (self.epoch, self.position)}
        state["rng"] = torch.get_rng_state()
        torch.save(state, folder / f"rank{self.ctx.rank}.pt")
        if self.fault == "draws while it saves":
            torch.rand(3)

    def load(self, folder: Path) -> None:
        fault, rank = self.fault, self.ctx.rank
        state = torch.load(folder / f"rank{rank}.pt")
        own = self.optimizer.state_dict()
        if fault == "moments lost":
            state["optimizer"]["state"] = {}
        if fault == "second moment lost":
            for held in state["optimizer"]["state"].values():
                held["exp_avg_sq"].zero_()
        if fault == "step counter lost":
            for held in state["optimizer"]["state"].values():
                held["step"].zero_()
        if fault == "learning rate lost":
            state["optimizer"]["param_groups"] = own["param_groups"]
        if fault == "buffer lost":
            state["model"]["average"].zero_()
        lost = {"model lost": "model", "schedule restarted": "schedule", "scaler lost": "scaler"}
        for name, part in self.parts().items():
            if lost.get(fault) != name:
                part.load_state_dict(state[name])
        self.model.calls = 0 if fault == "attribute lost" else state["calls"]
        self.epoch, self.position = state["data"]
        if fault == "position lost":
            self.position = 0
        if fault == "epoch not set":
            self.epoch = 0
        if fault == "restored before the iterator":
            torch.set_rng_state(state["rng"])
        self.open_epoch()
        if fault == "state of rank 0":
            state["rng"] = torch.load(folder / "rank0.pt")["rng"]
        if fault not in ("rng not restored", "restored before the iterator"):
            torch.set_rng_state(state["rng"])


def train(ctx: Any, fault: str = "", steps: int = STEPS) -> None:
    """Train with Adam, a schedule and a scaler; `fault` names the state that is not restored."""
    training = Training(ctx, fault)
    ranks = ctx.point.size("dp")
    ctx.watch(training.model, training.optimizer)
    with ctx.load() as folder:
        if folder is not None:
            training.load(folder)
    for _ in ctx.steps(steps):
        with ctx.step():
            for index in ctx.microbatches(ranks):
                with ctx.microbatch(index):
                    loss = training.model(training.batch()).square().mean()
                    training.scaler.scale(loss).backward()
                    ctx.loss(loss)
            for parameter in training.model.parameters():
                if ranks > 1:
                    dist.all_reduce(parameter.grad, group=ctx.group("dp"))
            training.scaler.step(training.optimizer)
            training.scaler.update()
            training.schedule.step()
            training.optimizer.zero_grad()
        with ctx.save() as folder:
            if folder is not None:
                training.save(folder)


def reseeds(ctx: Any) -> None:
    """Train with dropout; seed the generator in each step, and do not restore its state."""
    model = Model()
    ctx.initialize(model)
    ctx.watch(model)
    with ctx.load() as folder:
        if folder is not None:
            state = torch.load(folder / "state.pt")
            model.load_state_dict(state["model"])
            model.calls = state["calls"]
    for step in ctx.steps(STEPS):
        torch.manual_seed(step)
        with ctx.step(), ctx.microbatch(0):
            loss = model(torch.full((BATCH, WIDTH), step + 1.0)).square().mean()
            loss.backward()
            ctx.loss(loss)
            for parameter in model.parameters():
                assert parameter.grad is not None
                parameter.data -= 0.01 * parameter.grad
                parameter.grad = None
        with ctx.save() as folder:
            if folder is not None:
                torch.save({"model": model.state_dict(), "calls": model.calls}, folder / "state.pt")


def checkpointed(ctx: Any) -> None:
    """Train with the checkpoints of `TrainingCheckpoint`, and noise from each rank's generator."""
    checkpoint_program.train(ctx, noise=True)


def make_spec(
    name: str, arguments: dict[str, Any], point: dict[str, Any], resume: Resume | None = None
) -> RunSpec:
    """The RunSpec of a program of this file, or of another as "module:function", in float64."""
    return RunSpec(
        program=name if ":" in name else f"{__name__}:{name}",
        arguments=arguments_of(arguments),
        axes=tuple(point.items()),
        dtype="float64",
        seed=5,
        resume=resume,
        adapters=BUILT_IN,
    )


def make_job(spec: RunSpec, trace: Path, checkpoint: Path) -> dict[str, Any]:
    """An Assignment to record a Run, as plain data; writes the manifest of its trace."""
    write_manifest(trace, manifest_of(spec, "cpu"))
    made: dict[str, Any] = msgspec.to_builtins(
        Assignment(spec=spec, trace=str(trace), checkpoint=str(checkpoint))
    )
    return made


def record_all(jobs: list[dict[str, Any]]) -> None:
    """Record Runs one after the other in this group of ranks; this function is launched."""
    for data in jobs:
        assignment = msgspec.convert(data, Assignment, strict=False)
        spec = assignment.spec
        function = load_function(Function(spec.program))
        program.record(assignment, functools.partial(function, **spec.keywords))
        if dist.is_initialized():
            dist.barrier()  # a checkpoint may be loaded only when all ranks have saved it
    if dist.is_initialized():
        dist.destroy_process_group()
