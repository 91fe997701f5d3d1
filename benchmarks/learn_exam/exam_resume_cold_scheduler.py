"""The scheduler is no part of the checkpoint, so the warm-up runs again after a resume."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR


def warmup_then_poly(step: int) -> float:
    return (step + 1) / 5 if step < 5 else (1 - (step - 5) / 30) ** 0.9


def build(width: int) -> tuple[nn.Module, torch.optim.Optimizer, LambdaLR]:
    model = nn.Sequential(nn.Conv2d(1, width, 1), nn.GELU(), nn.Conv2d(width, 2, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-2)
    return model, optimizer, LambdaLR(optimizer, warmup_then_poly)


def train(healthy: bool = True, seed: int = 0, size: int = 16) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    images = torch.randn(12, 1, 6, 6)
    labels = (images[:, 0].abs() > 0.7).long()
    losses: list[float] = []
    rates: list[float] = []

    def run(parts: tuple[nn.Module, torch.optim.Optimizer, LambdaLR], steps: int) -> None:
        model, optimizer, scheduler = parts
        for _ in range(steps):
            loss: Tensor = nn.functional.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            rates.append(float(scheduler.get_last_lr()[0]))
            optimizer.step()
            scheduler.step()
            losses.append(loss.item())

    with TemporaryDirectory() as folder:
        path = Path(folder) / "last.ckpt"
        parts = build(size)
        run(parts, 12)
        state: dict[str, Any] = {"model": parts[0].state_dict(), "optimizer": parts[1].state_dict()}
        if healthy:
            state["scheduler"] = parts[2].state_dict()
        torch.save(state, path)

        parts = build(size)
        loaded = torch.load(path)
        parts[0].load_state_dict(loaded["model"])
        parts[1].load_state_dict(loaded["optimizer"])
        if "scheduler" in loaded:
            parts[2].load_state_dict(loaded["scheduler"])
        run(parts, 12)
    return {"loss": losses, "rate": rates}
