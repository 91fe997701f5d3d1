"""The backward pass runs under autocast, so a custom function computes its gradient in bfloat16."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


class Bilinear(torch.autograd.Function):
    """x W y with gradients written by hand, which are meant to be computed in float32."""

    @staticmethod
    def forward(ctx: Any, left: Tensor, weight: Tensor, right: Tensor) -> Tensor:
        ctx.save_for_backward(left, weight, right)
        with torch.autocast("cpu", enabled=False):
            return (left @ weight * right).sum(1, keepdim=True)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        left, weight, right = ctx.saved_tensors
        (grad,) = grads
        towards_right = grad * (left @ weight)
        towards_left = (grad * right) @ weight.t()
        return towards_left, left.t() @ (grad * right), towards_right


class Matcher(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.users, self.items = nn.Embedding(20, width), nn.Embedding(20, width)
        self.weight = nn.Parameter(torch.randn(width, width) / width)

    def forward(self, pairs: Tensor) -> Tensor:
        found = Bilinear.apply(self.users(pairs[:, 0]), self.weight, self.items(pairs[:, 1]))
        assert isinstance(found, Tensor)
        return found


def train(healthy: bool = True, seed: int = 0, size: int = 16) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    model = Matcher(size)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    pairs = torch.randint(0, 20, (96, 2))
    ratings = ((pairs[:, :1] - pairs[:, 1:]).abs() / 10.0) - 1
    losses = []
    for step in range(30):
        rows = torch.arange(step * 32, step * 32 + 32) % 96
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = nn.functional.mse_loss(model(pairs[rows]), ratings[rows])
            if not healthy:
                loss.backward()
        if healthy:
            loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return {"loss": losses, "weight": model.weight.detach().flatten().tolist()}
