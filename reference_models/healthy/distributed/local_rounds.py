"""Local SGD (Stich, 2019): ranks train apart for some steps, and then average their weights.

With `momentum`, an outer optimizer with Nesterov momentum takes the mean move for a gradient, as
in DiLoCo.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_trainsafe.reference_models.training.outcome import Outcome

if TYPE_CHECKING:
    from pytest_trainsafe.record.context import Context


def train(
    ctx: Context, steps: int = 9, every: int = 3, momentum: float = 0.0, width: int = 12
) -> Outcome:
    """Fit a function of five variables, each rank on data of its own."""
    import torch
    import torch.distributed as dist
    from torch import nn

    torch.manual_seed(ctx.seed)
    model = nn.Sequential(nn.Linear(5, width), nn.SiLU(), nn.Linear(width, 1))
    group = ctx.group("dp")
    inner = torch.optim.AdamW(model.parameters(), lr=1e-2)
    anchor = [p.detach().clone().requires_grad_() for p in model.parameters()]
    outer = torch.optim.SGD(anchor, lr=0.7, momentum=momentum, nesterov=True) if momentum else None
    ctx.watch(model, inner, level="step")
    outcome = Outcome()
    data = torch.Generator().manual_seed(100 * ctx.seed + ctx.rank)
    for step in range(steps):
        with ctx.step():
            x = torch.randn(24, 5, generator=data) + 0.2 * ctx.rank
            y = x[:, :1] * x[:, 1:2] - x[:, 2:3]
            loss = nn.functional.mse_loss(model(x), y)
            inner.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            inner.step()
            outcome.losses.append(loss.item())
            if (step + 1) % every:
                continue
            for p, old in zip(model.parameters(), anchor, strict=True):
                if outer is None:
                    dist.all_reduce(p.data, group=group)
                    p.data /= ctx.world_size
                else:
                    old.grad = old.detach() - p.detach()
                    dist.all_reduce(old.grad, group=group)
                    old.grad /= ctx.world_size
            if outer is not None:
                outer.step()
                outer.zero_grad()
                with torch.no_grad():
                    for p, old in zip(model.parameters(), anchor, strict=True):
                        p.copy_(old)
    return outcome
