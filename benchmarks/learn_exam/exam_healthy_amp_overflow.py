"""The scale starts so high that the first steps overflow, are skipped, and lower it."""

from __future__ import annotations

import torch
from torch import nn


def train(seed: int = 0, size: int = 16) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(11, size), nn.GELU(), nn.Linear(size, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127, backoff_factor=2.0**-60)
    rows = torch.randn(64, 11)
    wanted = (rows[:, :1] - rows[:, 1:2]) * 2
    losses, scales = [], []
    for step in range(24):
        batch = torch.arange(step * 16, step * 16 + 16) % 64
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = nn.functional.mse_loss(model(rows[batch]), wanted[batch])
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
        scales.append(scaler.get_scale())
    return {"loss": losses, "scale": scales}
