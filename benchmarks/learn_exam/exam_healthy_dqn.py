"""Q-learning from a replay buffer with a target network; the series is the error of values."""

from __future__ import annotations

import copy
import random
from collections import deque

import torch
from torch import Tensor, nn

Transition = tuple[int, int, float, int, bool]


def play(state: int, action: int) -> tuple[int, float, bool]:
    following = max(0, min(4, state + (1 if action else -1)))
    return following, float(following == 4), following == 4


def columns(batch: list[Transition]) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    states, actions, rewards, following, ends = zip(*batch, strict=True)
    return (
        nn.functional.one_hot(torch.tensor(states), 5).float(),
        torch.tensor(actions),
        torch.tensor(rewards),
        nn.functional.one_hot(torch.tensor(following), 5).float(),
        torch.tensor(ends).float(),
    )


def train(seed: int = 0, size: int = 16) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    random.seed(seed)
    online = nn.Sequential(nn.Linear(5, size), nn.ReLU(), nn.Linear(size, 2))
    target = copy.deepcopy(online)
    optimizer = torch.optim.Adam(online.parameters(), lr=1e-2)
    memory: deque[Transition] = deque(maxlen=200)
    right = torch.tensor([0.9**n for n in (3, 2, 1, 0)])
    errors = []
    for step in range(150):
        state = random.randrange(4)
        action = random.randrange(2)
        following, reward, end = play(state, action)
        memory.append((state, action, reward, following, end))
        if len(memory) < 16:
            continue
        states, actions, rewards, successors, ends = columns(random.sample(memory, 16))
        with torch.no_grad():
            wanted = rewards + 0.9 * (1 - ends) * target(successors).max(1).values
        found = online(states).gather(1, actions[:, None]).squeeze(1)
        loss = nn.functional.smooth_l1_loss(found, wanted)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_value_(online.parameters(), 1.0)
        optimizer.step()
        if step % 10 == 0:
            target.load_state_dict(online.state_dict())
        with torch.no_grad():
            values = online(torch.eye(5)[:4])[:, 1]
        errors.append((values - right).abs().mean().item())
    return {"loss": errors}
