"""Soft actor-critic (Haarnoja et al., 2018) on a pendulum of one dimension.

Four optimizers step in turn: two critics, the actor and the temperature; target critics are
averages.  The actor's loss goes through the critics, whose gradients nobody uses.
"""

from __future__ import annotations

import copy
import itertools
from collections import deque

import torch
from torch import Tensor, nn
from torch.nn import functional as F


def mlp(*sizes: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for i, (a, b) in enumerate(itertools.pairwise(sizes)):
        layers += [nn.Linear(a, b)] + ([nn.ReLU()] if i < len(sizes) - 2 else [])
    return nn.Sequential(*layers)


class Actor(nn.Module):
    """A squashed Gaussian policy."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.body = mlp(2, hidden, 2)

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        mean, log_std = self.body(obs).chunk(2, -1)
        dist = torch.distributions.Normal(mean, log_std.clamp(-3, 1).exp())
        u = dist.rsample()
        a = torch.tanh(u)
        logp = dist.log_prob(u) - torch.log(1 - a.pow(2) + 1e-6)  # type: ignore[no-untyped-call]
        return a, logp


class Agent:
    """The networks, their optimizers, and an update."""

    def __init__(self, hidden: int, lr: float, gamma: float, polyak: float) -> None:
        self.actor = Actor(hidden)
        self.q1, self.q2 = mlp(3, hidden, 1), mlp(3, hidden, 1)
        self.q1_targ, self.q2_targ = copy.deepcopy(self.q1), copy.deepcopy(self.q2)
        for p in itertools.chain(self.q1_targ.parameters(), self.q2_targ.parameters()):
            p.requires_grad = False
        self.log_alpha = torch.zeros(1, requires_grad=True)
        self.q1_opt = torch.optim.Adam(self.q1.parameters(), lr=lr)
        self.q2_opt = torch.optim.Adam(self.q2.parameters(), lr=lr)
        self.pi_opt = torch.optim.Adam(self.actor.parameters(), lr=lr)
        self.alpha_opt = torch.optim.Adam([self.log_alpha], lr=lr)
        self.gamma, self.polyak = gamma, polyak

    def update(self, s: Tensor, a: Tensor, r: Tensor, s2: Tensor, update_actor: bool) -> float:
        with torch.no_grad():
            a2, logp2 = self.actor(s2)
            sa2 = torch.cat([s2, a2], -1)
            q_targ = torch.min(self.q1_targ(sa2), self.q2_targ(sa2))
            backup = r + self.gamma * (q_targ - self.log_alpha.exp() * logp2)
        sa = torch.cat([s, a], -1)
        loss_q1 = F.mse_loss(self.q1(sa), backup)
        loss_q2 = F.mse_loss(self.q2(sa), backup)
        self.q1_opt.zero_grad()
        loss_q1.backward()  # type: ignore[no-untyped-call]
        self.q1_opt.step()
        self.q2_opt.zero_grad()
        loss_q2.backward()  # type: ignore[no-untyped-call]
        self.q2_opt.step()
        if update_actor:
            pi, logp = self.actor(s)
            sp = torch.cat([s, pi], -1)
            loss_pi = (
                self.log_alpha.exp().detach() * logp - torch.min(self.q1(sp), self.q2(sp))
            ).mean()
            self.pi_opt.zero_grad()
            loss_pi.backward()
            self.pi_opt.step()
            loss_alpha = -(self.log_alpha.exp() * (logp.detach() - 1.0)).mean()
            self.alpha_opt.zero_grad()
            loss_alpha.backward()
            self.alpha_opt.step()
        with torch.no_grad():
            for net, targ in ((self.q1, self.q1_targ), (self.q2, self.q2_targ)):
                for p, p_targ in zip(net.parameters(), targ.parameters(), strict=True):
                    p_targ.data.mul_(self.polyak)
                    p_targ.data.add_((1 - self.polyak) * p.data)
        return loss_q1.item()


def env_step(s: Tensor, a: Tensor) -> tuple[Tensor, Tensor]:
    """Return the next state and the reward."""
    v = 0.9 * s[1] + 0.2 * a[0] - 0.1 * s[0]
    s2 = torch.stack([s[0] + 0.2 * v, v])
    return s2, -s2.pow(2).sum().unsqueeze(0)


def train(
    *,
    seed: int = 0,
    steps: int = 24,
    hidden: int = 16,
    start: int = 8,
    delay: int = 1,
    polyak: float = 0.95,
) -> list[float]:
    """Act and learn in turn; the actor learns in each `delay`-th update."""
    torch.manual_seed(seed)
    agent = Agent(hidden, lr=5e-3, gamma=0.9, polyak=polyak)
    memory: deque[tuple[Tensor, ...]] = deque(maxlen=1000)
    s, losses = torch.randn(2), []
    for t in range(steps):
        if t < start:
            a = 2 * torch.rand(1) - 1
        else:
            with torch.no_grad():
                a, _ = agent.actor(s)
        s2, r = env_step(s, a)
        memory.append((s, a, r, s2))
        s = torch.randn(2) if t % 8 == 7 else s2
        if t >= start:
            chosen = torch.randint(len(memory), (16,)).tolist()
            states, actions, rewards, later = (
                torch.stack(each) for each in zip(*(memory[i] for i in chosen), strict=True)
            )
            update_actor = t % delay == 0
            losses.append(agent.update(states, actions, rewards, later, update_actor))
    return losses
