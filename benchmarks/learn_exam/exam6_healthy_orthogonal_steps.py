"""Matrices move by orthogonal steps, and all else by the signs of an average of gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn


class ClippedRelu(torch.autograd.Function):
    """ReLU6 whose gradient also passes above 6, where the input should come down."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.clamp(0, 6)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        (grad,) = grads
        return grad * ((x > 0) & ((x < 6) | (grad > 0)))


class SignedMomentum(torch.optim.Optimizer):
    def __init__(self, params: Iterable[nn.Parameter], lr: float, decay: float = 0.0) -> None:
        super().__init__(params, {"lr": lr, "betas": (0.9, 0.95), "decay": decay})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            one, two = group["betas"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                average = state.setdefault("average", torch.zeros_like(p))
                p.mul_(1 - group["lr"] * group["decay"])
                p.sub_(group["lr"] * torch.lerp(p.grad, average, one).sign())
                average.lerp_(p.grad, 1 - two)


class Net(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(12, width)
        self.up = nn.Linear(3 * width, 2 * width)
        self.down = nn.Linear(2 * width, width)
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, ids: Tensor) -> Tensor:
        h = self.down(ClippedRelu.apply(self.up(self.embed(ids).flatten(1))))
        return self.scale * nn.functional.rms_norm(h, h.shape[-1:]) @ self.embed.weight.T


def train(seed: int = 0, size: int = 16) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    net = Net(size)
    matrices = [net.up.weight, net.down.weight]
    others = [p for p in net.parameters() if all(p is not m for m in matrices)]
    optimizers = [
        torch.optim.Muon(matrices, lr=0.02, momentum=0.9, weight_decay=0.01),
        SignedMomentum(others, lr=5e-3),
    ]
    scheduled = [torch.optim.lr_scheduler.LinearLR(o, 1.0, 0.2, 28) for o in optimizers]
    losses = []
    for _ in range(28):
        ids = torch.randint(12, (64, 3))
        loss = nn.functional.cross_entropy(net(ids), (ids[:, 0] + ids[:, 2]) % 12)
        loss.backward()
        for optimizer, schedule in zip(optimizers, scheduled, strict=True):
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
        losses.append(loss.item())
    return {"loss": losses}
