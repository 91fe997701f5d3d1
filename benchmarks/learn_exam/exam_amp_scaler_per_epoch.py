"""Each epoch makes a new gradient scaler, which forgets the scale that it found."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler


def new_scaler() -> GradScaler:
    return GradScaler("cpu", init_scale=2.0**10, growth_interval=2)


def train_epoch(
    model: nn.Module,
    batches: list[tuple[Tensor, Tensor]],
    optimizer: torch.optim.Optimizer,
    scaler: GradScaler | None,
) -> tuple[list[float], list[float]]:
    scaler = scaler or new_scaler()
    losses, scales = [], []
    for images, species in batches:
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = nn.functional.cross_entropy(model(images), species)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
        scales.append(scaler.get_scale())
    return losses, scales


def train(healthy: bool = True, seed: int = 0, size: int = 16) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    model = nn.Sequential(
        nn.Conv2d(3, size, 3, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(9 * size, 4)
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    images = torch.randn(40, 3, 8, 8)
    species = images.mean((2, 3)).argmax(1)
    batches = [(images[rows], species[rows]) for rows in torch.arange(40).split(8)]
    kept = new_scaler() if healthy else None
    losses: list[float] = []
    scales: list[float] = []
    for _ in range(4):
        new_losses, new_scales = train_epoch(model, batches, optimizer, kept)
        losses += new_losses
        scales += new_scales
    return {"loss": losses, "scale": scales}
