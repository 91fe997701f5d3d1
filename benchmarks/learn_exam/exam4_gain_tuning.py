"""Tunes the gains of a network's norms to a new microphone, in low precision."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, d: int) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(d, eps=1e-5)
        self.up, self.down = nn.Linear(d, 2 * d, bias=False), nn.Linear(2 * d, d, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = x + self.down(nn.functional.silu(self.up(self.norm(x))))
        return y


def network(d: int) -> nn.Sequential:
    return nn.Sequential(Block(d), Block(d), nn.RMSNorm(d, eps=1e-5), nn.Linear(d, 1, bias=False))


def gains(model: nn.Module) -> list[nn.Parameter]:
    return [m.weight for m in model.modules() if isinstance(m, nn.RMSNorm)]


def disturbed(model: nn.Sequential, d: int) -> nn.Sequential:
    """The same network behind the new microphone: other gains, same matrices."""
    other = network(d)
    other.load_state_dict(model.state_dict())
    with torch.no_grad():
        for gain in gains(other):
            gain.mul_(1 + 0.12 * torch.randn(d).sign())
    return other


def train(healthy: bool = True, seed: int = 0, size: int = 16) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    model = network(size)
    wanted = disturbed(model, size)
    for p in model.parameters():
        p.requires_grad_(False)
    region: AbstractContextManager[object]
    if healthy:
        region = torch.autocast("cpu", dtype=torch.bfloat16)
    else:
        model.bfloat16()
        region = nullcontext()
    for gain in gains(model):
        gain.requires_grad_(True)
    optimizer = torch.optim.Adam(gains(model), lr=1.5e-3)
    losses, moved = [], []
    for _ in range(80):
        x = torch.randn(64, size)
        with region:
            y = model(x if healthy else x.bfloat16())
        with torch.no_grad():
            target = wanted(x)
        loss = nn.functional.mse_loss(y.float(), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        moved.append(max((gain.float() - 1).abs().max().item() for gain in gains(model)))
    return {"loss": losses, "moved": moved}
