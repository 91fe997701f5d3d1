"""Training with few exchanges: workers take steps of their own and average what they have changed.

The idea is that of DiLoCo (Douillard et al., "DiLoCo: Distributed Low-Communication Training of
Language Models"): in each round, every worker starts from the shared weights and takes some steps of
AdamW on its own data; the mean of the workers' changes is a gradient for an outer SGD with Nesterov
momentum.  The number of workers is fixed, and the dp ranks divide them, so one device simulates all.
"""

from __future__ import annotations

import copy

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from pytest_trainsafe import Context, divides, requires

INPUTS, WIDTH, CLASSES, BATCH = 8, 16, 4, 6


class Model(nn.Module):
    """A residual MLP that classifies vectors."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(INPUTS, WIDTH)
        self.norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, 2 * WIDTH)
        self.down = nn.Linear(2 * WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        x = x + self.down(F.gelu(self.up(self.norm(x))))
        return self.head(x)


class Worker:
    """A replica of the model with an inner optimizer, whose state lasts over rounds."""

    def __init__(self, model: Model, number: int) -> None:
        self.number = number
        self.model = copy.deepcopy(model)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=5e-3)

    def train(self, ctx: Context, outer_step: int, inner_steps: int) -> Tensor:
        """Take the steps of a round; return the mean of their losses."""
        losses = []
        for inner in range(inner_steps):
            x, labels = batch(ctx, outer_step, inner, self.number)
            scores = self.model(x)
            wide = torch.promote_types(scores.dtype, torch.float32)
            loss = F.cross_entropy(scores.to(wide), labels)
            loss.backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
            losses.append(loss.detach())
        return torch.stack(losses).mean()


def batch(ctx: Context, outer_step: int, inner: int, worker: int) -> tuple[Tensor, Tensor]:
    """The examples of one inner step of a worker, by the worker's number among all."""
    generator = torch.Generator().manual_seed(10_000 * outer_step + 100 * inner + worker)
    x = torch.randn(BATCH, INPUTS, generator=generator)
    labels = torch.randint(CLASSES, (BATCH,), generator=generator)
    return x.to(ctx.device, ctx.dtype), labels.to(ctx.device)


@torch.no_grad()
def outer_gradients(
    ctx: Context, model: Model, own: list[Worker], workers: int, fault: str
) -> None:
    """Give the shared model the mean over all workers of how far they have moved."""
    for name, parameter in model.named_parameters():
        moved = [parameter - worker.model.get_parameter(name) for worker in own]
        gradient = torch.stack(moved).sum(dim=0)
        dist.all_reduce(gradient, group=ctx.group("dp"))
        divisor = workers
        if fault == "summed" and ctx.world_size > 1:
            divisor = len(own)  # fault: summed
        parameter.grad = gradient / divisor


@requires(divides("workers", "dp"))
def train(
    ctx: Context, fault: str = "", workers: int = 2, inner_steps: int = 3, steps: int = 2
) -> None:
    """Train some rounds; a step of the record is a round."""
    model = Model().to(ctx.device, ctx.dtype)
    ctx.initialize(model)
    share = workers // ctx.point.size("dp")
    start = ctx.coordinates["dp"] * share
    if fault == "same-data" and ctx.world_size > 1:
        start = 0  # fault: same-data
    own = [Worker(model, number) for number in range(start, start + share)]
    outer = torch.optim.SGD(model.parameters(), lr=0.7, momentum=0.9, nesterov=True)
    ctx.watch(model, outer, level="step")
    for step in range(steps):
        with ctx.step():
            losses = []
            for worker in own:
                if not (fault == "not-restarted" and ctx.world_size > 1):  # fault: not-restarted
                    worker.model.load_state_dict(model.state_dict())
                losses.append(worker.train(ctx, step, inner_steps))
            ctx.loss(torch.stack(losses).mean())
            outer_gradients(ctx, model, own, workers, fault)
            outer.step()
            outer.zero_grad()
