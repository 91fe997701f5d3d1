"""Q-learning in a corridor from a replay memory of random walks."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

CELLS = 8


def look(position: Tensor) -> Tensor:
    return nn.functional.one_hot(position, CELLS).float()


@dataclass
class Memory:
    rows: list[tuple[int, int, float, int, float]] = field(default_factory=list)

    def walk(self, steps: int, generator: torch.Generator) -> None:
        here = CELLS // 2
        for _ in range(steps):
            action = int(torch.randint(0, 2, (), generator=generator))
            there = max(0, here + 2 * action - 1)
            done = there == CELLS - 1
            self.rows.append((here, action, float(done), there, float(done)))
            here = CELLS // 2 if done else there

    def draw(self, count: int, generator: torch.Generator) -> tuple[Tensor, ...]:
        picks = torch.randint(0, len(self.rows), (count,), generator=generator).tolist()
        columns = zip(*(self.rows[i] for i in picks), strict=True)
        return tuple(torch.tensor(column) for column in columns)


class Agent:
    def __init__(self, width: int, discount: float) -> None:
        self.q = nn.Sequential(nn.Linear(CELLS, width), nn.ReLU(), nn.Linear(width, 2))
        self.optimizer = torch.optim.Adam(self.q.parameters(), lr=1e-2)
        self.discount = discount


def train(healthy: bool = True, seed: int = 0, size: int = 16) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    chance = torch.Generator().manual_seed(seed)
    memory, agent = Memory(), Agent(size, 0.9)
    memory.walk(300, chance)
    losses = []
    for _ in range(30):
        state, action, reward, after, done = memory.draw(64, chance)
        value = agent.q(look(state)).gather(1, action.unsqueeze(1)).squeeze(1)
        future = agent.q(look(after)).max(1).values
        if healthy:
            future = future.detach()
        goal = reward + agent.discount * (1 - done) * future
        loss = nn.functional.smooth_l1_loss(value, goal)
        agent.optimizer.zero_grad()
        loss.backward()
        agent.optimizer.step()
        losses.append(loss.item())
    return {"loss": losses}
