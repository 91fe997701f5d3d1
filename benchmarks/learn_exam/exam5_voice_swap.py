"""Turns one speaker's spectra into another's, against a critic, in mixed precision."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.amp import GradScaler, autocast

BANDS = 20


def frames(count: int, colour: Tensor) -> tuple[Tensor, Tensor]:
    said = torch.randn(count, BANDS)
    return said, torch.tanh(said @ colour) + 0.02 * torch.randn(count, BANDS)


def train(healthy: bool = True, seed: int = 0, size: int = 32) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    colour = torch.randn(BANDS, BANDS) / BANDS**0.5
    net_g = nn.Sequential(nn.Linear(BANDS, size), nn.GELU(), nn.Linear(size, BANDS))
    net_d = nn.Sequential(nn.Linear(BANDS, size), nn.LeakyReLU(0.2), nn.Linear(size, 1))
    optim_g = torch.optim.AdamW(net_g.parameters(), 5e-3, betas=(0.8, 0.99))
    optim_d = torch.optim.AdamW(net_d.parameters(), 1e-3, betas=(0.8, 0.99))
    scaler = GradScaler("cpu", init_scale=2.0**10, growth_interval=25)
    mel = []
    for _ in range(45):
        source, target = frames(32, colour)
        with autocast("cpu", torch.bfloat16):
            made = net_g(source)
            real, fake = net_d(target), net_d(made.detach())
            with autocast("cpu", enabled=False):
                loss_d = ((1 - real.float()) ** 2).mean() + (fake.float() ** 2).mean()
        optim_d.zero_grad()
        scaler.scale(loss_d).backward()
        scaler.unscale_(optim_d)
        nn.utils.clip_grad_norm_(net_d.parameters(), 5.0)
        scaler.step(optim_d)

        with autocast("cpu", torch.bfloat16):
            judged = net_d(made)
            with autocast("cpu", enabled=False):
                loss_mel = F.l1_loss(made.float(), target)
                loss_g = 5 * loss_mel + ((1 - judged.float()) ** 2).mean()
        optim_g.zero_grad()
        scaler.scale(loss_g).backward()
        scaler.unscale_(optim_g)
        nn.utils.clip_grad_norm_(net_g.parameters(), 5.0)
        scaler.step(optim_g)
        scaler.update()
        if not healthy:
            optim_g.step()
            optim_d.step()
        mel.append(loss_mel.item())
    return {"loss": mel}
