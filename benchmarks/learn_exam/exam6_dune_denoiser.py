"""Removes noise from profiles of dunes; the weights that are shipped are a running average.

Follows https://github.com/d8ahazard/sd_dreambooth_extension/pull/1417.
"""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn


class EMAModel:
    """Keeps an average of the parameters of a model, in a dtype of its own."""

    def __init__(self, model: nn.Module, decay: float, dtype: torch.dtype) -> None:
        self.decay = decay
        self.shadow = [p.detach().clone().to(dtype) for p in model.parameters()]

    @torch.no_grad()
    def step(self, model: nn.Module) -> None:
        for s, p in zip(self.shadow, model.parameters(), strict=True):
            s.sub_((1 - self.decay) * (s - p.to(s.dtype)))

    @torch.no_grad()
    def copy_to(self, model: nn.Module) -> None:
        for s, p in zip(self.shadow, model.parameters(), strict=True):
            p.copy_(s)


def profiles(count: int) -> Tensor:
    x = torch.linspace(0, 6.28, 24)
    slope, shift = torch.rand(count, 1) + 0.5, 6.28 * torch.rand(count, 1)
    return torch.sin(slope * x + shift)


def train(healthy: bool = True, seed: int = 0, size: int = 48) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    weight_dtype = torch.bfloat16
    unet = nn.Sequential(nn.Linear(24, size), nn.SiLU(), nn.Linear(size, 24))
    ema = EMAModel(unet, decay=0.995, dtype=torch.float32 if healthy else weight_dtype)
    optimizer = torch.optim.AdamW(unet.parameters(), lr=3e-3)
    held = profiles(64)
    noise = 0.5 * torch.randn_like(held)
    losses, averaged = [], []
    for step in range(30):
        clean = profiles(32)
        with torch.autocast("cpu", dtype=weight_dtype):
            guess = unet(clean + 0.5 * torch.randn_like(clean))
        loss = nn.functional.mse_loss(guess.float(), clean)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        ema.step(unet)
        losses.append(loss.item())
        if step % 10 == 9:
            shipped = copy.deepcopy(unet)
            ema.copy_to(shipped)
            with torch.no_grad():
                averaged.append((shipped(held + noise) - held).pow(2).mean().item())
    return {"loss": losses, "averaged": averaged}
