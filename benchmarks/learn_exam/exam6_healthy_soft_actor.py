"""A soft actor and two critics, three optimizers and a temperature, on steps that it rolls out."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.distributions import Normal


@dataclass
class Memory:
    rows: list[tuple[Tensor, Tensor, Tensor, Tensor]] = field(default_factory=list)

    def sample(self, n: int) -> list[Tensor]:
        picked = torch.randint(len(self.rows), (n,)).tolist()
        return [torch.stack(part) for part in zip(*(self.rows[i] for i in picked), strict=True)]


class Actor(nn.Module):
    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2, hidden), nn.ReLU(), nn.Linear(hidden, 2))

    def forward(self, state: Tensor) -> tuple[Tensor, Tensor]:
        mean, log_std = self.net(state).chunk(2, dim=-1)
        policy = Normal(mean, log_std.clamp(-4, 1).exp())
        raw = policy.rsample()
        action = raw.tanh()
        log_prob = policy.log_prob(raw) - torch.log(1 - action.square() + 1e-6)
        return action, log_prob.squeeze(-1)


class Critics(nn.Module):
    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.pair = nn.ModuleList(
            nn.Sequential(nn.Linear(3, hidden), nn.ReLU(), nn.Linear(hidden, 1)) for _ in range(2)
        )

    def forward(self, state: Tensor, action: Tensor) -> Tensor:
        both = torch.cat([state, action], dim=-1)
        return torch.cat([q(both) for q in self.pair], dim=-1)


def move(state: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
    speed = 0.7 * state[1] + 0.3 * action[0]
    after = torch.stack([state[0] + speed, speed])
    return after, -after.square().sum().clamp(max=4.0)


def train(seed: int = 0, size: int = 32, gamma: float = 0.7) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    actor, critics = Actor(size), Critics(size)
    slow = copy.deepcopy(critics).requires_grad_(False)
    log_alpha = torch.tensor(-2.0, requires_grad=True)
    a_opt = torch.optim.Adam(actor.parameters(), lr=1e-2)
    c_opt = torch.optim.Adam(critics.parameters(), lr=2e-2)
    t_opt = torch.optim.Adam([log_alpha], lr=1e-2)
    memory, log = Memory(), {"loss": [], "alpha": []}  # type: ignore[var-annotated]
    state = torch.randn(2)
    for turn in range(34):
        with torch.no_grad():
            for at in range(16):
                action, _ = actor(state)
                after, reward = move(state, action)
                memory.rows.append((state, action, reward, after))
                state = torch.randn(2) if at % 8 == 7 else after
        if turn < 4:
            continue
        s, a, r, s2 = memory.sample(64)
        with torch.no_grad():
            a2, lp2 = actor(s2)
            goal = r + gamma * (slow(s2, a2).min(-1).values - log_alpha.exp() * lp2)
        c_loss = (critics(s, a) - goal[:, None]).square().mean()
        c_opt.zero_grad()
        c_loss.backward()
        c_opt.step()

        new, lp = actor(s)
        a_loss = (log_alpha.exp().detach() * lp - critics(s, new).min(-1).values).mean()
        a_opt.zero_grad()
        a_loss.backward()
        a_opt.step()

        t_loss = -(log_alpha.exp() * (lp.detach() - 1.0)).mean()
        t_opt.zero_grad()
        t_loss.backward()
        t_opt.step()
        with torch.no_grad():
            for old, q in zip(slow.parameters(), critics.parameters(), strict=True):
                old.mul_(0.9).add_(q, alpha=0.1)
        log["loss"].append(c_loss.item())
        log["alpha"].append(log_alpha.exp().item())
    return log
