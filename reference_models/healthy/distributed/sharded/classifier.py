"""Fully sharded parameters (`fully_shard`), a classifier: SGD with momentum, a step schedule."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_trainsafe.reference_models.training.outcome import Outcome

if TYPE_CHECKING:
    from pytest_trainsafe.record.context import Context


def train(ctx: Context, steps: int = 6, width: int = 16, lr: float = 0.1) -> Outcome:
    """Classify vectors by the largest of their first four entries.

    `fully_shard` is applied to each linear layer separately.  Each rank draws different data.
    """
    import torch
    from torch import nn
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import fully_shard
    from torch.nn import functional as F

    torch.manual_seed(ctx.seed)
    mesh = DeviceMesh.from_group(ctx.group("dp"), "cpu")
    model = nn.Sequential(nn.Linear(8, width), nn.ReLU(), nn.Linear(width, 4))
    for part in (model[0], model[2], model):
        fully_shard(part, mesh=mesh)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=3, gamma=0.5)
    ctx.watch(model, optimizer, level="step")
    data = torch.Generator().manual_seed(41 + ctx.seed + ctx.rank)
    outcome = Outcome()
    for _ in range(steps):
        with ctx.step():
            inputs = torch.randn(24, 8, generator=data)
            loss = F.cross_entropy(model(inputs), inputs[:, :4].argmax(dim=1))
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            outcome.losses.append(loss.item())
    return outcome
