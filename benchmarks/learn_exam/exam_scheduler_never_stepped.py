"""A warm-up schedule is built and never stepped, so the rate stays where the warm-up starts."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR


def cosine_with_warmup(step: int, warmup: int = 4, total: int = 24) -> float:
    if step < warmup:
        return (step + 1) / warmup
    return 0.5 * (1 + math.cos(math.pi * (step - warmup) / (total - warmup)))


def train(healthy: bool = True, seed: int = 0, size: int = 16) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    denoiser = nn.Sequential(nn.Linear(9, 4 * size), nn.Mish(), nn.Linear(4 * size, 8))
    optimizer = torch.optim.AdamW(denoiser.parameters(), lr=2e-2)
    lr_scheduler = LambdaLR(optimizer, cosine_with_warmup)
    clean = torch.sin(torch.linspace(0, 6, 8)) * torch.rand(64, 1)
    losses, rates = [], []
    global_step = 0
    while global_step < 24:
        latents = clean[torch.randint(0, 64, (16,))]
        level = torch.rand(16, 1)
        noise = torch.randn_like(latents)
        noisy = (1 - level) * latents + level * noise
        prediction = denoiser(torch.cat([noisy, level], 1))
        loss = nn.functional.mse_loss(prediction, noise)
        loss.backward()
        optimizer.step()
        if healthy:
            lr_scheduler.step()
        optimizer.zero_grad()
        global_step += 1
        losses.append(loss.item())
        rates.append(float(lr_scheduler.get_last_lr()[0]))
    return {"loss": losses, "rate": rates}
