"""Gradients are clipped before the backward pass that makes them."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class WorldModel(nn.Module):
    """Predicts the next observation from the present one and an action."""

    def __init__(self, width: int, clip_inside: bool) -> None:
        super().__init__()
        self.clip_inside = clip_inside
        self.net = nn.Sequential(nn.Linear(6, width), nn.ELU(), nn.Linear(width, 4))

    def training_step(self, seen: Tensor, action: Tensor, following: Tensor) -> Tensor:
        loss = nn.functional.mse_loss(self.net(torch.cat([seen, action], 1)), following)
        if self.clip_inside:
            self.clip()
        return loss

    def clip(self) -> None:
        nn.utils.clip_grad_norm_(self.parameters(), 0.25)


def train(healthy: bool = True, seed: int = 0, size: int = 16) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    model = WorldModel(size, clip_inside=not healthy)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    seen, action = torch.randn(64, 4) * 3, torch.randn(64, 2)
    following = seen.roll(1, 1) + action.repeat(1, 2)
    losses, norms = [], []
    for step in range(32):
        rows = torch.arange(step * 16, step * 16 + 16) % 64
        loss = model.training_step(seen[rows], action[rows], following[rows])
        optimizer.zero_grad()
        loss.backward()
        if healthy:
            model.clip()
        norms.append(
            sum(p.grad.square().sum().item() for p in model.parameters() if p.grad is not None)
        )
        optimizer.step()
        losses.append(loss.item())
    return {"loss": losses, "norm": norms}
