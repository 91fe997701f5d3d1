"""An actor walks along a pole to its middle, and a critic says how well it stands."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.distributions import Categorical

WALKERS, STRIDE, GAMMA = 32, 0.25, 0.9


class Pole:
    def __init__(self, g: torch.Generator) -> None:
        self.g = g
        self.place = 2 * torch.rand(WALKERS, generator=g) - 1

    def seen(self) -> Tensor:
        return torch.stack([self.place, self.place.abs(), torch.ones_like(self.place)], dim=1)

    def move(self, way: Tensor) -> Tensor:
        wind = 0.05 * torch.randn(WALKERS, generator=self.g)
        self.place = (self.place + STRIDE * (way.float() - 1) + wind).clamp(-1, 1)
        reward = -self.place.abs()
        gone = torch.rand(WALKERS, generator=self.g) < 0.1
        fresh = 2 * torch.rand(WALKERS, generator=self.g) - 1
        self.place = torch.where(gone, fresh, self.place)
        return reward


def train(healthy: bool = True, seed: int = 0, size: int = 16) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    pole = Pole(torch.Generator().manual_seed(seed))
    actor = nn.Sequential(nn.Linear(3, size), nn.Tanh(), nn.Linear(size, 3))
    critic = nn.Sequential(nn.Linear(3, size), nn.Tanh(), nn.Linear(size, 1))
    optimizer = torch.optim.Adam(
        [{"params": actor.parameters(), "lr": 2e-2}, {"params": critic.parameters(), "lr": 2e-2}]
    )
    cost = []
    for _ in range(60):
        state = pole.seen()
        policy = Categorical(logits=actor(state))
        way = policy.sample()
        reward = pole.move(way)
        value = critic(state).squeeze(-1)
        with torch.no_grad():
            target = reward + GAMMA * critic(pole.seen()).squeeze(-1)
        advantage = target - value
        critic_loss = advantage.pow(2).mean()
        weight = advantage.detach() if healthy else advantage
        actor_loss = -(policy.log_prob(way) * weight).mean() - 0.01 * policy.entropy().mean()
        loss = actor_loss + 0.5 * critic_loss
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_([*actor.parameters(), *critic.parameters()], 1.0)
        optimizer.step()
        cost.append(-reward.mean().item())
    return {"loss": cost}
