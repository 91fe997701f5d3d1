"""A diffusion model of coral outlines that predicts velocities, with a weight for each noise level.

Follows https://github.com/huggingface/diffusers/issues/5654.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

LEVELS, GAMMA, POINTS = 50, 5.0, 16


def cosine_levels() -> Tensor:
    at = torch.linspace(0.02, 0.98, LEVELS)
    return (at * math.pi / 2).cos() ** 2


def weights(snr: Tensor, add_to_both: bool) -> Tensor:
    """The weights of the losses of velocities, for these ratios of signal to noise."""
    capped = snr + 1 if add_to_both else snr
    return capped.clamp(max=GAMMA) / (snr + 1)


def outlines(n: int) -> Tensor:
    angle = torch.linspace(0, 2 * math.pi, POINTS + 1)[:-1]
    lobes = torch.randint(2, 5, (n, 1))
    shape = (lobes * angle + 6.28 * torch.rand(n, 1)).sin()
    return shape * (0.8 + 0.4 * torch.rand(n, 1))


class VelocityNet(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.level = nn.Embedding(LEVELS, width)
        self.enter = nn.Linear(POINTS, width)
        self.middle = nn.Sequential(nn.SiLU(), nn.Linear(width, width), nn.SiLU())
        self.leave = nn.Linear(width, POINTS)

    def forward(self, noisy: Tensor, level: Tensor) -> Tensor:
        h = self.enter(noisy) + self.level(level)
        return self.leave(h + self.middle(h))


def train(healthy: bool = True, seed: int = 0, size: int = 20) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    kept = cosine_levels()
    weight_of = weights(kept / (1 - kept), add_to_both=not healthy)
    net = VelocityNet(2 * size)
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.004, weight_decay=1e-3)
    warm = torch.optim.lr_scheduler.LinearLR(optimizer, 0.2, total_iters=8)
    history = []
    for _ in range(60):
        clean, level = outlines(32), torch.randint(LEVELS, (32,))
        signal, noise_part = kept[level, None].sqrt(), (1 - kept[level, None]).sqrt()
        noise = torch.randn_like(clean)
        noisy = signal * clean + noise_part * noise
        velocity = signal * noise - noise_part * clean
        error = (net(noisy, level) - velocity).square().mean(1)
        loss = (weight_of[level] * error).mean()
        loss.backward()
        optimizer.step()
        warm.step()
        optimizer.zero_grad()
        history.append(loss.item())
    return {"loss": history}
