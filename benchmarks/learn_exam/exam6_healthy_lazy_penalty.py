"""A generator against a critic, which takes two steps to its one and is penalised now and then."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus


def mlp(inputs: int, hidden: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(inputs, hidden), nn.LeakyReLU(0.2), nn.Linear(hidden, outputs))


def real(n: int) -> Tensor:
    centre = torch.tensor([[1.5, 0.5], [0.5, 1.5]])
    return centre[torch.randint(2, (n,))] + 0.1 * torch.randn(n, 2)


def penalty(critic: nn.Module, x: Tensor) -> Tensor:
    x = x.detach().requires_grad_()
    (slope,) = torch.autograd.grad(critic(x).sum(), x, create_graph=True)
    return slope.square().sum(dim=1).mean()


def train(seed: int = 0, size: int = 32) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    generator, critic = mlp(4, size, 2), mlp(2, size, 1)
    g_opt = torch.optim.Adam(generator.parameters(), lr=1e-2, betas=(0.0, 0.99))
    c_opt = torch.optim.Adam(critic.parameters(), lr=1e-2, betas=(0.0, 0.99))
    fixed = torch.randn(128, 4)
    log: dict[str, list[float]] = {"loss": [], "critic": []}
    turns = 0
    for _ in range(24):
        for _ in range(2):
            with torch.no_grad():
                fake = generator(torch.randn(64, 4))
            truth = real(64)
            c_loss = softplus(critic(fake)).mean() + softplus(-critic(truth)).mean()
            if turns % 4 == 0:
                c_loss = c_loss + 4 * 0.5 * 0.2 * penalty(critic, truth)
            c_opt.zero_grad()
            c_loss.backward()
            c_opt.step()
            turns += 1
        critic.requires_grad_(False)
        g_loss = softplus(-critic(generator(torch.randn(64, 4)))).mean()
        g_opt.zero_grad()
        g_loss.backward()
        g_opt.step()
        critic.requires_grad_(True)
        with torch.no_grad():
            gap = generator(fixed).mean(0) - torch.tensor([1.0, 1.0])
        log["loss"].append(gap.norm().item())
        log["critic"].append(c_loss.item())
    return log
