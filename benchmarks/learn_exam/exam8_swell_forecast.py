"""Heights of the swell, forecast from a few labels and an averaged teacher, in two sessions.

Follows https://github.com/lightly-ai/lightly-train/pull/892.
"""

from __future__ import annotations

import copy
import io
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

HOURS = 10


class Averaged:
    """An average of the weights, whose memory grows with the number of its updates."""

    def __init__(self, net: nn.Module, most: float) -> None:
        self.net = copy.deepcopy(net).requires_grad_(False)
        self.most, self.updates = most, 0

    @torch.no_grad()
    def update(self, net: nn.Module) -> None:
        self.updates += 1
        keep = min(self.most, self.updates / (self.updates + 6))
        for slow, fast in zip(self.net.parameters(), net.parameters(), strict=True):
            slow.lerp_(fast, 1 - keep)


class Session:
    def __init__(self, seed: int, size: int) -> None:
        torch.manual_seed(seed)
        self.net = nn.Sequential(nn.Linear(HOURS, 2 * size), nn.Tanh(), nn.Linear(2 * size, 1))
        self.averaged = Averaged(self.net, most=0.97)
        self.optimizer = torch.optim.AdamW(self.net.parameters(), lr=0.02)
        self.source = torch.Generator().manual_seed(seed)

    def save(self, counted: bool) -> bytes:
        state: dict[str, Any] = {
            "net": self.net.state_dict(),
            "averaged": self.averaged.net.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "source": self.source.get_state(),
        }
        if counted:
            state["updates"] = self.averaged.updates
        file = io.BytesIO()
        torch.save(state, file)
        return file.getvalue()

    def load(self, saved: bytes) -> None:
        state = torch.load(io.BytesIO(saved))
        self.net.load_state_dict(state["net"])
        self.averaged.net.load_state_dict(state["averaged"])
        self.averaged.updates = state.get("updates", self.averaged.updates)
        self.optimizer.load_state_dict(state["optimizer"])
        self.source.set_state(state["source"])

    def swell(self) -> tuple[Tensor, Tensor]:
        phase = 6.3 * torch.rand(24, 1, generator=self.source)
        heights = (phase + torch.arange(HOURS + 1) / 2).sin()
        heights = heights + 0.15 * torch.randn(heights.shape, generator=self.source)
        return heights[:, :-1], heights[:, -1:]

    def run(self, steps: int) -> list[float]:
        curve = []
        for _ in range(steps):
            before, after = self.swell()
            noisy = before + 0.1 * torch.randn(before.shape, generator=self.source)
            taught = self.averaged.net(before)
            loss = F.mse_loss(self.net(before)[:6], after[:6])
            loss = loss + F.mse_loss(self.net(noisy), taught)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            self.averaged.update(self.net)
            curve.append(loss.item())
        return curve


def train(healthy: bool = True, seed: int = 0, size: int = 16) -> dict[str, list[float]]:
    first = Session(seed, size)
    curve = first.run(26)
    second = Session(seed + 100, size)
    second.load(first.save(counted=healthy))
    return {"loss": curve + second.run(26)}
