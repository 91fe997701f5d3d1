"""Depths of ridges from small pictures; a warmed-up encoder learns more slowly than its decoder.

Follows https://github.com/shariqfarooq123/AdaBins/issues/44.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Options:
    lr: float = 0.02
    encoder_divides: float = 10
    steps: int = 40
    batch: int = 12


class DepthNet(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Conv2d(1, width // 2, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Conv2d(width // 2, width, 3, stride=2, padding=1),
            nn.ReLU(),
        )
        self.decoder = nn.Sequential(
            nn.ConvTranspose2d(width, width // 2, 4, stride=2, padding=1),
            nn.ReLU(),
            nn.ConvTranspose2d(width // 2, 1, 4, stride=2, padding=1),
        )

    def forward(self, picture: Tensor) -> Tensor:
        return self.decoder(self.encoder(picture))


def ridges(n: int) -> tuple[Tensor, Tensor]:
    along = torch.linspace(-2, 2, 8)
    slope, shift = torch.randn(n, 1, 1), torch.randn(n, 1, 1)
    depth = torch.exp(-((along[None, :, None] - slope * along[None, None, :] - shift) ** 2))
    picture = depth.diff(dim=1, prepend=depth[:, :1]) + 0.05 * torch.randn(n, 8, 8)
    return picture[:, None], depth[:, None]


def train(healthy: bool = True, seed: int = 0, size: int = 16) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    options = Options()
    net = DepthNet(size)
    groups = [
        {"params": net.encoder.parameters(), "lr": options.lr / options.encoder_divides},
        {"params": net.decoder.parameters(), "lr": options.lr},
    ]
    optimizer = torch.optim.AdamW(groups, weight_decay=0.01)
    highest = [group["lr"] for group in optimizer.param_groups] if healthy else options.lr
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr=highest, total_steps=options.steps, pct_start=0.3
    )
    log: dict[str, list[float]] = {"loss": []}
    for _ in range(options.steps):
        picture, depth = ridges(options.batch)
        loss = nn.functional.l1_loss(net(picture), depth)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        log["loss"].append(loss.item())
    return log
