"""Contrast of two views with a queue of old keys and a slow encoder that gets no gradient."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class MoCo(nn.Module):
    queue: Tensor
    place: Tensor

    def __init__(self, width: int, length: int, pace: float) -> None:
        super().__init__()
        self.quick = nn.Sequential(nn.Linear(10, width), nn.ReLU(), nn.Linear(width, 8))
        self.slow = copy.deepcopy(self.quick).requires_grad_(False)
        self.pace = pace
        self.register_buffer("queue", F.normalize(torch.randn(length, 8), dim=1))
        self.register_buffer("place", torch.zeros((), dtype=torch.long))

    @torch.no_grad()
    def follow(self) -> None:
        for slow, quick in zip(self.slow.parameters(), self.quick.parameters(), strict=True):
            slow.mul_(self.pace).add_(quick, alpha=1 - self.pace)

    @torch.no_grad()
    def enqueue(self, keys: Tensor) -> None:
        start = int(self.place)
        self.queue[start : start + len(keys)] = keys
        self.place.fill_((start + len(keys)) % len(self.queue))

    def forward(self, one: Tensor, other: Tensor) -> Tensor:
        query = F.normalize(self.quick(one), dim=1)
        with torch.no_grad():
            self.follow()
            key = F.normalize(self.slow(other), dim=1)
        positive = (query * key).sum(1, keepdim=True)
        scores = torch.cat((positive, query @ self.queue.clone().T), dim=1) / 0.3
        self.enqueue(key)
        return F.cross_entropy(scores, torch.zeros(len(scores), dtype=torch.long))


def train(seed: int = 0, size: int = 16) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    model = MoCo(size, 48, 0.95)
    optimizer = torch.optim.SGD(model.quick.parameters(), lr=0.3, momentum=0.9)
    losses = []
    for _ in range(28):
        thing = torch.randn(12, 10)
        one, other = (thing + 0.2 * torch.randn(12, 10) for _ in range(2))
        loss = model(one, other)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return {"loss": losses}
