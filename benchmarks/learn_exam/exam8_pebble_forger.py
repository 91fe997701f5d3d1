"""A forger of pebbles' shapes, whose critic is kept smooth by a penalty on its slopes.

Follows https://github.com/ooples/AiDotNet/issues/1844.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

SHAPE, NOISE = 4, 6


def pebbles(count: int, source: torch.Generator) -> Tensor:
    """Pebbles are long or round, and all of them are heavy."""
    long = torch.rand(count, 1, generator=source) < 0.5
    centres = torch.tensor([[1.0, 2.0, 1.5, 1.0], [2.0, 1.0, 1.5, 2.0]])
    centre = centres[long.squeeze(1).long()]
    return centre + 0.2 * torch.randn(count, SHAPE, generator=source)


class Critic(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(SHAPE, width),
            nn.LeakyReLU(0.2),
            nn.Linear(width, width),
            nn.LeakyReLU(0.2),
            nn.Linear(width, 1),
        )

    def forward(self, x: Tensor) -> Tensor:
        score: Tensor = self.layers(x)
        return score

    def slopes(self, real: Tensor, forged: Tensor, source: torch.Generator, graph: bool) -> Tensor:
        """How far the norm of the slope is from one, between real and forged pebbles."""
        part = torch.rand(len(real), 1, generator=source)
        between = (part * real + (1 - part) * forged).requires_grad_()
        (slope,) = torch.autograd.grad(self(between).sum(), between, create_graph=graph)
        return (slope.norm(dim=1) - 1).square().mean()


def train(healthy: bool = True, seed: int = 0, size: int = 16) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    forger = nn.Sequential(nn.Linear(NOISE, 2 * size), nn.ReLU(), nn.Linear(2 * size, SHAPE))
    critic = Critic(2 * size)
    forging = torch.optim.Adam(forger.parameters(), lr=0.01, betas=(0.5, 0.9))
    judging = torch.optim.Adam(critic.parameters(), lr=0.005, betas=(0.5, 0.9))
    source = torch.Generator().manual_seed(seed)
    log: dict[str, list[float]] = {"loss": [], "critic": []}
    for _ in range(70):
        for _ in range(3):
            real = pebbles(32, source)
            forged = forger(torch.randn(32, NOISE, generator=source)).detach()
            margin = critic(forged).mean() - critic(real).mean()
            loss = margin + 5 * critic.slopes(real, forged, source, graph=healthy)
            judging.zero_grad()
            loss.backward()
            judging.step()
        made = forger(torch.randn(32, NOISE, generator=source))
        forging.zero_grad()
        (-critic(made).mean()).backward()
        forging.step()
        log["critic"].append(loss.item())
        log["loss"].append((made.detach().mean(0) - real.mean(0)).norm().item())
    return log
