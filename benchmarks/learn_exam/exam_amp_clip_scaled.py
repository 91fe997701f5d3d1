"""Gradients are clipped while they are scaled, so the norm is cut thousands of times too far."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn


@dataclass
class TrainerConfig:
    use_amp: bool = True
    grad_norm_clip: float = 1.0
    lr: float = 0.05


def train(healthy: bool = True, seed: int = 0, size: int = 16) -> dict[str, list[float]]:
    config = TrainerConfig()
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Embedding(24, size), nn.LayerNorm(size), nn.Linear(size, 24))
    optimizer = torch.optim.SGD(model.parameters(), lr=config.lr, momentum=0.9)
    scaler = torch.amp.GradScaler("cpu", enabled=config.use_amp, init_scale=2.0**12)
    tokens = torch.randint(0, 24, (128,))
    following = (tokens * 5 + 3) % 24
    losses, norms = [], []
    for step in range(24):
        rows = torch.arange(step * 32, step * 32 + 32) % 128
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=config.use_amp):
            loss = nn.functional.cross_entropy(model(tokens[rows]), following[rows])
        optimizer.zero_grad(set_to_none=True)
        scaler.scale(loss).backward()
        if healthy:
            scaler.unscale_(optimizer)
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), config.grad_norm_clip)
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
        norms.append(norm.item())
    return {"loss": losses, "norm": norms}
