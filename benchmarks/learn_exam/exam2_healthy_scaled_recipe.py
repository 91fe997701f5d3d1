"""A recipe with autocast, a gradient scaler, clipping and warm-up, set up by a dict."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, SequentialLR

RECIPE: dict[str, Any] = {
    "optimizer": {"lr": 2e-2, "weight_decay": 0.01, "betas": (0.9, 0.95)},
    "warmup": 5,
    "steps": 26,
    "clip": 1.0,
    "scaler": {"init_scale": 1024.0, "growth_interval": 8},
}


class Gated(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.enter = nn.Linear(9, width)
        self.norm = nn.BatchNorm1d(width)
        self.gate, self.leave = nn.Linear(width, 2 * width), nn.Linear(width, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.enter(x))
        scores: Tensor = self.leave(nn.functional.glu(self.gate(x)))
        return scores


def train(seed: int = 0, size: int = 16) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    model = Gated(size)
    steps, warmup = RECIPE["steps"], RECIPE["warmup"]
    optimizer = torch.optim.AdamW(model.parameters(), **RECIPE["optimizer"])
    schedule = SequentialLR(
        optimizer,
        [
            LinearLR(optimizer, 0.2, total_iters=warmup),
            CosineAnnealingLR(optimizer, steps - warmup),
        ],
        milestones=[warmup],
    )
    scaler = torch.amp.GradScaler("cpu", **RECIPE["scaler"])
    record: dict[str, list[float]] = {"loss": [], "scale": []}
    directions = torch.randn(9, 4)
    for _ in range(steps):
        inputs = torch.randn(32, 9)
        answers = (inputs @ directions).argmax(1)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = nn.functional.cross_entropy(model(inputs), answers, label_smoothing=0.05)
        optimizer.zero_grad(set_to_none=True)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), RECIPE["clip"])
        scaler.step(optimizer)
        scaler.update()
        schedule.step()
        record["loss"].append(loss.item())
        record["scale"].append(scaler.get_scale())
    return record
