"""Faults of glass, most of which are easy to see, with a loss that turns to the hard ones.

Follows https://github.com/foamliu/InsightFace-v2/pull/39.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

TRAITS, FAULTS, BATCH = 9, 5, 32


class FocalLoss(nn.Module):
    """Cross-entropy, times how far the chance of the right answer is from one."""

    def __init__(self, gamma: float, each: bool) -> None:
        super().__init__()
        self.gamma = gamma
        self.entropy = nn.CrossEntropyLoss(reduction="none" if each else "mean")

    def forward(self, scores: Tensor, labels: Tensor) -> Tensor:
        entropy = self.entropy(scores, labels)
        chance = (-entropy).exp()
        return ((1 - chance) ** self.gamma * entropy).mean()


class Inspector(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.enter = nn.Linear(TRAITS, width)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.SiLU(), nn.Dropout(0.05))
            for _ in range(2)
        )
        self.faults = nn.Linear(width, FAULTS)

    def forward(self, panes: Tensor) -> Tensor:
        x = self.enter(panes)
        for block in self.blocks:
            x = x + block(x)
        scores: Tensor = self.faults(x)
        return scores


def panes(centres: Tensor, source: torch.Generator) -> tuple[Tensor, Tensor]:
    """Nine in ten panes lie near the centre of their fault, and the others between two."""
    fault = torch.randint(FAULTS, (BATCH,), generator=source)
    other = torch.randint(FAULTS, (BATCH,), generator=source)
    hard = torch.rand(BATCH, 1, generator=source) < 0.1
    part = torch.where(hard, 0.4, 0.0)
    traits = (1 - part) * centres[fault] + part * centres[other]
    return traits + 0.3 * torch.randn(BATCH, TRAITS, generator=source), fault


def train(healthy: bool = True, seed: int = 0, size: int = 16) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    inspector = Inspector(2 * size)
    focal = FocalLoss(gamma=2.0, each=healthy)
    optimizer = torch.optim.SGD(inspector.parameters(), lr=0.15, momentum=0.9, nesterov=True)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, total_iters=45)
    centres = torch.randn(FAULTS, TRAITS)
    source = torch.Generator().manual_seed(seed)
    log: dict[str, list[float]] = {"loss": [], "right": []}
    for _ in range(45):
        traits, fault = panes(centres, source)
        scores = inspector(traits)
        loss = focal(scores, fault)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        log["loss"].append(loss.item())
        log["right"].append((scores.argmax(1) == fault).float().mean().item())
    return log
