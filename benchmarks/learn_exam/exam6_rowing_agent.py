"""An agent that rows towards a buoy learns values of actions from a replay buffer.

Follows https://github.com/Toni-SM/skrl/issues/449.
"""

from __future__ import annotations

import copy
import random
from collections import deque
from typing import NamedTuple

import torch
from torch import Tensor, nn


class Step(NamedTuple):
    state: Tensor
    action: int
    reward: float
    after: Tensor
    done: bool


class Bay:
    """A boat on a line; an episode terminates at the shore and is truncated after 12 strokes."""

    limit = 12

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def reset(self) -> Tensor:
        self.at, self.speed, self.strokes = self.random.uniform(-1, 1), 0.0, 0
        return self.observe()

    def observe(self) -> Tensor:
        return torch.tensor([self.at, self.speed])

    def step(self, action: int) -> tuple[Tensor, float, bool, bool]:
        self.speed = 0.8 * self.speed + 0.15 * (action - 1)
        self.at += self.speed
        self.strokes += 1
        terminated = abs(self.at) > 1.8
        reward = 1.0 - abs(self.at)
        return self.observe(), reward, terminated, self.strokes >= self.limit


class Agent:
    def __init__(self, hidden: int, seed: int) -> None:
        self.q = nn.Sequential(nn.Linear(2, hidden), nn.ReLU(), nn.Linear(hidden, 3))
        self.target = copy.deepcopy(self.q).requires_grad_(False)
        self.opt = torch.optim.Adam(self.q.parameters(), lr=1e-2)
        self.replay: deque[Step] = deque(maxlen=1000)
        self.random = random.Random(seed)

    def act(self, state: Tensor, explore: float) -> int:
        if self.random.random() < explore:
            return self.random.randrange(3)
        with torch.no_grad():
            return int(self.q(state).argmax())

    def learn(self, gamma: float = 0.8, tau: float = 0.1) -> float:
        batch = self.random.sample(list(self.replay), 64)
        state = torch.stack([s.state for s in batch])
        after = torch.stack([s.after for s in batch])
        action = torch.tensor([s.action for s in batch])
        reward = torch.tensor([s.reward for s in batch])
        done = torch.tensor([float(s.done) for s in batch])
        with torch.no_grad():
            goal = reward + gamma * (1 - done) * self.target(after).amax(-1)
        value = self.q(state).gather(1, action[:, None]).squeeze(1)
        loss = nn.functional.smooth_l1_loss(value, goal)
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        with torch.no_grad():
            for slow, fast in zip(self.target.parameters(), self.q.parameters(), strict=True):
                slow.lerp_(fast, tau)
        return loss.item()


def train(healthy: bool = True, seed: int = 0, size: int = 32) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    bay, agent = Bay(seed), Agent(size, seed)
    losses = []
    for episode in range(40):
        state, over = bay.reset(), False
        while not over:
            action = agent.act(state, explore=0.5)
            after, reward, terminated, truncated = bay.step(action)
            over = terminated or truncated
            agent.replay.append(Step(state, action, reward, after, terminated if healthy else over))
            state = after
        if episode >= 10:
            losses.append(agent.learn())
    return {"loss": losses}
