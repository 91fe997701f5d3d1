"""Data parallelism by hand: gradients are averaged by an all-reduce or by messages, then Adam."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_trainsafe.reference_models.training.outcome import Outcome

if TYPE_CHECKING:
    from pytest_trainsafe.record.context import Context


def train(ctx: Context, steps: int = 5, messages: bool = True, width: int = 20) -> Outcome:
    """Fit a function of six variables; `messages` sends gradients instead of reducing them."""
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.nn import functional as F

    from pytest_trainsafe.reference_models.toolkit.devices import Link, average_gradients

    torch.manual_seed(ctx.seed)
    model = nn.Sequential(nn.Linear(6, width), nn.Tanh(), nn.Linear(width, 1))
    group = ctx.group("dp")
    for parameter in model.parameters():
        dist.broadcast(parameter.data, src=0, group=group)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    ctx.watch(model, optimizer, level="step")
    link, outcome = Link(), Outcome()
    data = torch.Generator().manual_seed(ctx.seed + 10 * ctx.rank)
    for _ in range(steps):
        with ctx.step():
            inputs = torch.rand(24, 6, generator=data)
            target = (inputs[:, :3] * inputs[:, 3:]).sum(dim=1, keepdim=True)
            loss = F.smooth_l1_loss(model(inputs), target)
            loss.backward()  # type: ignore[no-untyped-call]
            if messages:
                average_gradients(model, group, link)
            else:
                for parameter in model.parameters():
                    assert parameter.grad is not None
                    dist.all_reduce(parameter.grad, group=group)
                    parameter.grad /= ctx.world_size
            optimizer.step()
            optimizer.zero_grad()
            outcome.losses.append(loss.item())
    return outcome
