"""Deep Q-learning in a corridor: a replay buffer, and a target net that is copied now and then."""

from __future__ import annotations

import copy
import random
from collections import deque

import torch
from torch import Tensor, nn

CELLS = 7


def one_hot(cell: int) -> Tensor:
    return nn.functional.one_hot(torch.tensor(cell), CELLS).float()


class Agent:
    def __init__(self, width: int, rng: random.Random) -> None:
        self.q = nn.Sequential(nn.Linear(CELLS, width), nn.ReLU(), nn.Linear(width, 2))
        self.target = copy.deepcopy(self.q).requires_grad_(False)
        self.buffer: deque[tuple[int, int, float, int, bool]] = deque(maxlen=300)
        self.optimizer = torch.optim.Adam(self.q.parameters(), lr=8e-3)
        self.rng = rng
        self.epsilon = 1.0

    def act(self, cell: int) -> int:
        if self.rng.random() < self.epsilon:
            return self.rng.randrange(2)
        with torch.no_grad():
            return int(self.q(one_hot(cell)).argmax())

    def learn(self) -> float:
        batch = self.rng.sample(list(self.buffer), 32)
        s, a, r, s2, end = zip(*batch, strict=True)
        now = torch.stack([one_hot(c) for c in s])
        later = torch.stack([one_hot(c) for c in s2])
        chosen = self.q(now).gather(1, torch.tensor(a)[:, None]).squeeze(1)
        with torch.no_grad():
            best = self.target(later).max(1).values
            goal = torch.tensor(r) + 0.9 * best * (1 - torch.tensor(end).float())
        loss = nn.functional.smooth_l1_loss(chosen, goal)
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_value_(self.q.parameters(), 1.0)
        self.optimizer.step()
        return loss.item()


def train(seed: int = 0, size: int = 24) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    agent = Agent(size, random.Random(seed))
    cell, losses = CELLS // 2, []
    for step in range(320):
        action = agent.act(cell)
        after = max(0, min(CELLS - 1, cell + (1 if action else -1)))
        end = after == CELLS - 1
        agent.buffer.append((cell, action, 1.0 if end else -0.02, after, end))
        cell = agent.rng.randrange(CELLS - 1) if end else after
        if len(agent.buffer) >= 64 and step % 4 == 0:
            losses.append(agent.learn())
            agent.epsilon = max(0.1, agent.epsilon * 0.97)
        if step % 60 == 59:
            agent.target.load_state_dict(agent.q.state_dict())
    return {"loss": losses}
