"""A rover that crosses dunes: it learns from old steps, towards slowly moving targets."""

from __future__ import annotations

import copy
import random
from collections import deque
from typing import NamedTuple

import torch
from torch import Tensor, nn


class Step(NamedTuple):
    before: Tensor
    move: int
    gain: float
    after: Tensor
    over: bool


class Dunes:
    """Heights in a row; the rover moves left or right and likes to be high."""

    def __init__(self, draw: random.Random) -> None:
        self.draw = draw
        self.reset()

    def reset(self) -> Tensor:
        self.at, self.left = self.draw.uniform(-1, 1), 10
        return self.look()

    def look(self) -> Tensor:
        return torch.tensor([self.at, self.at**2])

    def go(self, move: int) -> tuple[float, bool]:
        self.at = max(-1.5, min(1.5, self.at + (move - 0.5) * 0.5))
        self.left -= 1
        return -((self.at - 0.5) ** 2), self.left == 0


class Rover:
    def __init__(self, width: int, draw: random.Random) -> None:
        self.values = nn.Sequential(nn.Linear(2, width), nn.ReLU(), nn.Linear(width, 2))
        self.targets = copy.deepcopy(self.values).requires_grad_(False)
        self.optimizer = torch.optim.Adam(self.values.parameters(), lr=0.01, amsgrad=True)
        self.memory: deque[Step] = deque(maxlen=150)
        self.draw = draw

    def choose(self, seen: Tensor, curious: float) -> int:
        if self.draw.random() < curious:
            return self.draw.randrange(2)
        with torch.no_grad():
            return int(self.values(seen).argmax())

    def learn(self) -> float:
        steps = self.draw.sample(list(self.memory), 24)
        before = torch.stack([each.before for each in steps])
        after = torch.stack([each.after for each in steps])
        move = torch.tensor([[each.move] for each in steps])
        gain = torch.tensor([each.gain for each in steps])
        with torch.no_grad():
            best = self.values(after).argmax(1, keepdim=True)
            wanted = gain + 0.5 * self.targets(after).gather(1, best).squeeze(1)
        loss = nn.functional.smooth_l1_loss(self.values(before).gather(1, move).squeeze(1), wanted)
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_value_(self.values.parameters(), 1.0)
        self.optimizer.step()
        with torch.no_grad():
            for slow, fast in zip(self.targets.parameters(), self.values.parameters(), strict=True):
                slow.lerp_(fast, 0.1)
        return loss.item()


def train(seed: int = 0, size: int = 16) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    draw = random.Random(seed)
    dunes, rover = Dunes(draw), Rover(2 * size, draw)
    seen, losses = dunes.reset(), []
    for time in range(120):
        move = rover.choose(seen, curious=max(0.1, 1 - time / 80))
        gain, over = dunes.go(move)
        after = dunes.look()
        rover.memory.append(Step(seen, move, gain, after, over))
        seen = dunes.reset() if over else after
        if time >= 30 and time % 2 == 0:
            losses.append(rover.learn())
    return {"loss": losses}
