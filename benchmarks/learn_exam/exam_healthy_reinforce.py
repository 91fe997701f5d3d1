"""A policy gradient with a baseline walks to a goal; the series is the negative return."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.distributions import Categorical


class Corridor:
    """States 0 to 6; the walk starts in the middle and ends at the right end or after 8 moves."""

    def reset(self) -> int:
        self.state, self.moves = 3, 0
        return self.state

    def step(self, action: int) -> tuple[int, float, bool]:
        self.state = max(0, min(6, self.state + (1 if action == 1 else -1)))
        self.moves += 1
        arrived = self.state == 6
        return self.state, (1.0 if arrived else -0.1), arrived or self.moves == 8


def observe(state: int) -> Tensor:
    return nn.functional.one_hot(torch.tensor(state), 7).float()


def episode(world: Corridor, policy: nn.Module) -> tuple[Tensor, list[float]]:
    logs, rewards, done = [], [], False
    state = world.reset()
    while not done:
        choice = Categorical(logits=policy(observe(state)))
        action = choice.sample()
        logs.append(choice.log_prob(action))
        state, reward, done = world.step(int(action))
        rewards.append(reward)
    return torch.stack(logs), rewards


def train(seed: int = 0, size: int = 16) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    policy = nn.Sequential(nn.Linear(7, size), nn.Tanh(), nn.Linear(size, 2))
    optimizer = torch.optim.Adam(policy.parameters(), lr=2e-2)
    world, baseline = Corridor(), 0.0
    returns = []
    for _ in range(24):
        total = torch.zeros(())
        gained = 0.0
        for _ in range(6):
            logs, rewards = episode(world, policy)
            to_go = torch.tensor(rewards).flip(0).cumsum(0).flip(0)
            total = total - (logs * (to_go - baseline)).sum() / 6
            gained += sum(rewards) / 6
        optimizer.zero_grad()
        total.backward()
        optimizer.step()
        baseline = 0.8 * baseline + 0.2 * gained
        returns.append(-gained)
    return {"loss": returns}
