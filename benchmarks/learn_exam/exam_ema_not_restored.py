"""For sampling, the average is copied into the network in training, and nobody puts it back."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class EMAModel:
    """Keeps an average of parameters, and can put it into them and take it out again."""

    def __init__(self, parameters: list[nn.Parameter], decay: float = 0.9) -> None:
        self.parameters, self.decay = parameters, decay
        self.shadow = [p.detach().clone() for p in parameters]
        self.stored: list[Tensor] = []

    @torch.no_grad()
    def step(self) -> None:
        for shadow, parameter in zip(self.shadow, self.parameters, strict=True):
            shadow.sub_((1 - self.decay) * (shadow - parameter))

    @torch.no_grad()
    def copy_to(self) -> None:
        self.stored = [p.clone() for p in self.parameters]
        for shadow, parameter in zip(self.shadow, self.parameters, strict=True):
            parameter.copy_(shadow)

    @torch.no_grad()
    def restore(self) -> None:
        for stored, parameter in zip(self.stored, self.parameters, strict=True):
            parameter.copy_(stored)


def train(healthy: bool = True, seed: int = 0, size: int = 16) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    unet = nn.Sequential(nn.Linear(5, 2 * size), nn.SiLU(), nn.Linear(2 * size, 4))
    ema = EMAModel(list(unet.parameters()))
    optimizer = torch.optim.AdamW(unet.parameters(), lr=1e-2)
    data = torch.randn(1, 4).expand(64, 4) + 0.1 * torch.randn(64, 4)
    losses, samples = [], []
    for _ in range(5):
        for rows in torch.randperm(64).split(16):
            noise, time = torch.randn(16, 4), torch.rand(16, 1)
            noisy = (1 - time) * data[rows] + time * noise
            loss = nn.functional.mse_loss(unet(torch.cat([noisy, time], 1)), noise - data[rows])
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            ema.step()
            losses.append(loss.item())
        ema.copy_to()
        with torch.no_grad():
            start = torch.ones(8, 4)
            samples.append((start - unet(torch.cat([start, start[:, :1]], 1))).mean().item())
        if healthy:
            ema.restore()
    return {"loss": losses, "samples": samples}
