"""Calls of birds, of which some are rare, drawn so that all kinds are heard equally often.

Follows https://github.com/deep-voice/soundbay/pull/49.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, WeightedRandomSampler

BIRDS, BANDS, FRAMES = 4, 8, 6


class Calls(Dataset[tuple[Tensor, int]]):
    """Spectrograms of calls, in the order of their recording."""

    def __init__(self, count: int) -> None:
        share = torch.tensor([0.6, 0.25, 0.1, 0.05])
        self.bird = torch.multinomial(share, count, replacement=True)
        self.bird[:BIRDS] = torch.arange(BIRDS)
        patterns = torch.randn(BIRDS, 1, BANDS, FRAMES)
        self.sound = patterns[self.bird] + 0.9 * torch.randn(count, 1, BANDS, FRAMES)

    def __len__(self) -> int:
        return len(self.bird)

    def __getitem__(self, at: int) -> tuple[Tensor, int]:
        return self.sound[at], int(self.bird[at])


class Listener(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.bands = nn.Conv2d(1, width, (BANDS, 3), padding=(0, 1))
        self.norm = nn.BatchNorm2d(width)
        self.memory = nn.LSTM(width, width, batch_first=True)
        self.birds = nn.Linear(width, BIRDS)

    def forward(self, sound: Tensor) -> Tensor:
        x = F.relu(self.norm(self.bands(sound))).squeeze(2).transpose(1, 2)
        scores: Tensor = self.birds(self.memory(x)[0].mean(1))
        return scores


def evenly(calls: Calls, each_call: bool) -> WeightedRandomSampler:
    """A sampler that favours rare birds, by the inverse of how often they were recorded."""
    weights = 1.0 / torch.bincount(calls.bird, minlength=BIRDS)
    if each_call:
        weights = weights[calls.bird]
    return WeightedRandomSampler(weights.tolist(), num_samples=len(calls))


def train(healthy: bool = True, seed: int = 0, size: int = 16) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    calls = Calls(160)
    loader = DataLoader(calls, batch_size=16, sampler=evenly(calls, each_call=healthy))
    listener = Listener(size)
    optimizer = torch.optim.AdamW(listener.parameters(), lr=0.01)
    curve = []
    for _ in range(5):
        for sound, bird in loader:
            loss = F.cross_entropy(listener(sound), bird, label_smoothing=0.05)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(listener.parameters(), 1.0)
            optimizer.step()
            curve.append(loss.item())
    return {"loss": curve}
