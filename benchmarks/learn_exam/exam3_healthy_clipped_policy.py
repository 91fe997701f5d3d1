"""Walks along a corridor by a policy whose changes are clipped, with estimated advantages."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.distributions import Categorical

PLACES = 8


@dataclass(frozen=True)
class Settings:
    walks: int = 8
    length: int = 12
    rounds: int = 6
    epochs: int = 3
    minibatches: int = 2
    discount: float = 0.9
    trace: float = 0.95
    clip: float = 0.2
    entropy: float = 0.01
    max_norm: float = 0.5


class ActorCritic(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.body = nn.Linear(PLACES, width)
        self.actor = nn.Linear(width, 2)
        self.critic = nn.Linear(width, 1)
        for layer, gain in ((self.body, 2**0.5), (self.actor, 0.01), (self.critic, 1.0)):
            nn.init.orthogonal_(layer.weight, gain)
            nn.init.zeros_(layer.bias)

    def forward(self, places: Tensor) -> tuple[Categorical, Tensor]:
        seen = torch.tanh(self.body(nn.functional.one_hot(places, PLACES).float()))
        return Categorical(logits=self.actor(seen)), self.critic(seen).squeeze(-1)


@dataclass
class Rollout:
    places: Tensor
    actions: Tensor
    log_probs: Tensor
    advantages: Tensor
    returns: Tensor


@torch.no_grad()
def walk(model: ActorCritic, settings: Settings) -> Rollout:
    place = torch.randint(PLACES, (settings.walks,))
    places, actions, log_probs, values, rewards = [], [], [], [], []
    for _ in range(settings.length):
        policy, value = model(place)
        action = policy.sample()
        places.append(place)
        actions.append(action)
        log_probs.append(policy.log_prob(action))
        values.append(value)
        place = (place + 2 * action - 1).clamp(0, PLACES - 1)
        rewards.append(place.float() / (PLACES - 1))
    following = model(place)[1]
    advantage = torch.zeros(settings.walks)
    advantages: list[Tensor] = []
    for value, reward in zip(reversed(values), reversed(rewards), strict=True):
        surprise = reward + settings.discount * following - value
        advantage = surprise + settings.discount * settings.trace * advantage
        advantages.insert(0, advantage)
        following = value
    gained = torch.stack(advantages).flatten()
    returns = gained + torch.stack(values).flatten()
    return Rollout(
        torch.stack(places).flatten(),
        torch.stack(actions).flatten(),
        torch.stack(log_probs).flatten(),
        gained,
        returns,
    )


def loss_of(model: ActorCritic, rollout: Rollout, rows: Tensor, settings: Settings) -> Tensor:
    policy, value = model(rollout.places[rows])
    ratio = (policy.log_prob(rollout.actions[rows]) - rollout.log_probs[rows]).exp()
    advantage = rollout.advantages[rows]
    advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
    clipped = ratio.clamp(1 - settings.clip, 1 + settings.clip)
    gain = torch.minimum(ratio * advantage, clipped * advantage).mean()
    error = nn.functional.mse_loss(value, rollout.returns[rows])
    return 0.5 * error - gain - settings.entropy * policy.entropy().mean()


def train(seed: int = 0, size: int = 16) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    settings = Settings()
    model = ActorCritic(size)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-2, eps=1e-5)
    losses = []
    for number in range(settings.rounds):
        for group in optimizer.param_groups:
            group["lr"] = 2e-2 * (1 - number / settings.rounds)
        rollout = walk(model, settings)
        for _ in range(settings.epochs):
            for rows in torch.randperm(len(rollout.places)).chunk(settings.minibatches):
                loss = loss_of(model, rollout, rows, settings)
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(model.parameters(), settings.max_norm)
                optimizer.step()
                losses.append(loss.item())
    return {"loss": losses}
