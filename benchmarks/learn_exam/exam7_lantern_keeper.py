"""A keeper who walks along a pier to its lantern, trained by clipped policy gradients.

Follows https://github.com/RLinf/RLinf/issues/1568.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.distributions import Categorical

PLACES, KEEPERS, STEPS, GAMMA, CLIP = 7, 16, 8, 0.9, 0.2


class Pier:
    """Many piers at once; the lantern stands at the end, and a walker starts anywhere."""

    def __init__(self) -> None:
        self.at = torch.randint(PLACES, (KEEPERS,))

    def seen(self) -> Tensor:
        return nn.functional.one_hot(self.at, PLACES).float()

    def walk(self, action: Tensor) -> Tensor:
        self.at = (self.at + 2 * action - 1).clamp(0, PLACES - 1)
        return (self.at == PLACES - 1).float() - 0.1


class Policy(nn.Module):
    """Scores of the two actions, and a value for each state in a column."""

    def __init__(self, width: int, value_column: bool) -> None:
        super().__init__()
        self.value_column = value_column
        self.body = nn.Sequential(nn.Linear(PLACES, width), nn.Tanh())
        self.act, self.value = nn.Linear(width, 2), nn.Linear(width, 1)

    def forward(self, seen: Tensor) -> tuple[Categorical, Tensor]:
        h = self.body(seen)
        value = self.value(h)
        return Categorical(logits=self.act(h)), value if self.value_column else value.squeeze(-1)


@dataclass
class Rollout:
    seen: Tensor
    action: Tensor
    log_prob: Tensor
    returns: Tensor
    advantage: Tensor
    reward: float


@torch.no_grad()
def roll_out(policy: Policy) -> Rollout:
    pier, rows = Pier(), []
    for _ in range(STEPS):
        seen = pier.seen()
        choice, value = policy(seen)
        action = choice.sample()
        rows.append((seen, action, choice.log_prob(action), value, pier.walk(action)))
    ahead = policy(pier.seen())[1].reshape(KEEPERS, 1)
    returns: list[Tensor] = []
    for *_, reward in reversed(rows):
        ahead = reward[:, None] + GAMMA * ahead
        returns.insert(0, ahead)
    seen, action, log_prob, value = (torch.cat(part) for part in list(zip(*rows, strict=True))[:4])
    target = torch.cat(returns)
    advantage = (target - value.reshape(-1, 1)).squeeze(1)
    advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-6)
    mean = torch.stack([row[-1] for row in rows]).mean().item()
    return Rollout(seen, action, log_prob, target, advantage, mean)


def train(healthy: bool = True, seed: int = 0, size: int = 16) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    policy = Policy(size, value_column=healthy)
    optimizer = torch.optim.Adam(policy.parameters(), lr=0.02)
    log: dict[str, list[float]] = {"loss": [], "reward": []}
    for _ in range(20):
        batch = roll_out(policy)
        for _ in range(3):
            choice, value = policy(batch.seen)
            ratio = (choice.log_prob(batch.action) - batch.log_prob).exp()
            gain = torch.min(
                ratio * batch.advantage, ratio.clamp(1 - CLIP, 1 + CLIP) * batch.advantage
            ).mean()
            critic = (batch.returns - value).square().mean()
            loss = 0.5 * critic - gain - 0.01 * choice.entropy().mean()
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(policy.parameters(), 0.5)
            optimizer.step()
        log["loss"].append(critic.item())
        log["reward"].append(batch.reward)
    return log
