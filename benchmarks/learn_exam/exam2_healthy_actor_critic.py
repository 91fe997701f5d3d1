"""An actor and a critic that share a trunk, updated several times on every rollout."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.distributions import Categorical


class Rollout(NamedTuple):
    seen: Tensor
    action: Tensor
    chance: Tensor
    gain: Tensor


class ActorCritic(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(4, width), nn.Tanh())
        self.actor, self.critic = nn.Linear(width, 3), nn.Linear(width, 1)
        nn.init.orthogonal_(self.actor.weight, gain=0.01)

    def forward(self, seen: Tensor) -> tuple[Categorical, Tensor]:
        hidden = self.trunk(seen)
        return Categorical(logits=self.actor(hidden)), self.critic(hidden).squeeze(-1)


@torch.no_grad()
def collect(model: ActorCritic, steps: int) -> Rollout:
    seen = torch.randn(steps, 16, 4)
    policy, _ = model(seen)
    action = policy.sample()
    reward = (action == seen[..., :3].argmax(-1)).float() + seen[..., 3]
    gain, after = torch.empty_like(reward), torch.zeros(16)
    for step in reversed(range(steps)):
        after = gain[step] = reward[step] + 0.5 * after
    return Rollout(seen, action, policy.log_prob(action), gain)


def train(seed: int = 0, size: int = 16) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    model = ActorCritic(size)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2, eps=1e-5)
    log: dict[str, list[float]] = {"loss": [], "entropy": []}
    for _ in range(10):
        rollout = collect(model, 8)
        for _ in range(3):
            policy, value = model(rollout.seen)
            better = rollout.gain - value.detach()
            better = (better - better.mean()) / (better.std() + 1e-8)
            ratio = (policy.log_prob(rollout.action) - rollout.chance).exp()
            surrogate = torch.min(ratio * better, ratio.clamp(0.8, 1.2) * better).mean()
            error = (value - rollout.gain).square().mean()
            entropy = policy.entropy().mean()
            total = 0.5 * error - surrogate - 0.01 * entropy
            optimizer.zero_grad()
            total.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            log["loss"].append(error.item())
            log["entropy"].append(entropy.item())
    return log
