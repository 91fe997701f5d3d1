"""Learns values of pushing a cart left or right, from steps that it has remembered."""

from __future__ import annotations

import random
from collections import deque

import torch
from torch import Tensor, nn


class Cart:
    """A cart on a rail; being in the middle is rewarded."""

    def __init__(self) -> None:
        self.place, self.speed = 0.0, 0.0

    def push(self, action: int) -> float:
        self.speed = 0.8 * self.speed + (0.2 if action else -0.2)
        self.place = max(-2.0, min(2.0, self.place + self.speed))
        return 2.0 - abs(self.place)

    @property
    def seen(self) -> list[float]:
        return [self.place, self.speed]


def value_network(width: int) -> nn.Module:
    return nn.Sequential(nn.Linear(2, width), nn.ReLU(), nn.Linear(width, 2))


class CentralControl:
    def __init__(self, width: int, shared_sync: bool) -> None:
        self.moving_nn = value_network(width)
        self.target_nn = value_network(width)
        self.target_nn.load_state_dict(self.moving_nn.state_dict())
        self.optimizer = torch.optim.Adam(self.moving_nn.parameters(), lr=1e-2)
        self.shared_sync = shared_sync

    def optimize(self, batch: tuple[Tensor, Tensor, Tensor, Tensor]) -> float:
        before, action, reward, after = batch
        value = self.moving_nn(before).gather(1, action[:, None]).squeeze(1)
        with torch.no_grad():
            wanted = reward + 0.5 * self.target_nn(after).amax(1)
        loss = nn.functional.mse_loss(value, wanted)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.item()

    def update_target(self) -> None:
        self.target_nn.load_state_dict(self.moving_nn.state_dict())
        if self.shared_sync:
            self.target_nn = self.moving_nn


class Memory:
    def __init__(self, most: int, draws: random.Random) -> None:
        self.steps: deque[tuple[list[float], int, float, list[float]]] = deque(maxlen=most)
        self.draws = draws

    def sample(self, count: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        before, action, reward, after = zip(
            *self.draws.sample(list(self.steps), count), strict=True
        )
        return (
            torch.tensor(before), torch.tensor(action), torch.tensor(reward), torch.tensor(after),
        )  # fmt: skip


def train(healthy: bool = True, seed: int = 0, size: int = 16) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    draws = random.Random(seed)
    control, cart, memory = CentralControl(size, not healthy), Cart(), Memory(200, draws)
    losses = []
    for iteration in range(40 + 40):
        before, action = cart.seen, draws.randrange(2)
        reward = cart.push(action)
        memory.steps.append((before, action, reward, cart.seen))
        if iteration < 40:
            continue
        losses.append(control.optimize(memory.sample(32)))
        if len(losses) % 8 == 0:
            control.update_target()
    return {"loss": losses}
