"""Follows a drifting radio signal in pieces; the recurrent state goes on from piece to piece."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

import torch
from torch import Tensor, nn


def signal(
    channels: int, piece: int, gen: torch.Generator
) -> Iterator[tuple[Tensor, Tensor, bool]]:
    """Pieces of a noisy wave, what follows each reading, and whether the wave is a new one."""
    while True:
        pace = 0.3 + 0.3 * torch.rand(channels, 1, generator=gen)
        time = torch.arange(piece * 5 + 1)
        wave = torch.sin(pace * time) + 0.1 * torch.randn(channels, len(time), generator=gen)
        for number in range(5):
            at = slice(number * piece, (number + 1) * piece)
            after = slice(at.start + 1, at.stop + 1)
            yield wave[:, at, None], wave[:, after, None], number == 0


class Follower(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.cell = nn.LSTM(1, width, batch_first=True)
        self.next = nn.Linear(width, 1)
        self.memory: tuple[Tensor, Tensor] | None = None

    def forward(self, piece: Tensor, fresh: bool) -> Tensor:
        if fresh:
            self.memory = None
        hidden, memory = self.cell(piece, self.memory)
        self.memory = (memory[0].detach(), memory[1].detach())
        reading: Tensor = self.next(hidden)
        return reading


def train(seed: int = 0, size: int = 12) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    gen = torch.Generator().manual_seed(seed + 88)
    follower = Follower(size)
    adam = torch.optim.Adam(follower.parameters(), lr=2e-2)
    cosine = torch.optim.lr_scheduler.CosineAnnealingLR(adam, T_max=40)
    losses = []
    for piece, after, fresh in islice(signal(16, 8, gen), 40):
        loss = nn.functional.mse_loss(follower(piece, fresh), after)
        adam.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(follower.parameters(), 1.0)
        adam.step()
        cosine.step()
        losses.append(loss.item())
    return {"loss": losses}
