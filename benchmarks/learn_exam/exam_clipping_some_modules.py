"""Of the two parts of the discriminator, only one is clipped."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Codec(nn.Module):
    """A tiny audio codec with a spectral discriminator and discriminators of the waveform."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.coder = nn.Sequential(nn.Linear(16, 4), nn.Linear(4, 16))
        self.stft_discriminator = nn.Sequential(nn.Linear(9, width), nn.ReLU(), nn.Linear(width, 1))
        self.discriminators = nn.ModuleList(nn.Linear(16 // n, 1) for n in (1, 2))

    def score(self, wave: Tensor) -> Tensor:
        spectrum = self.stft_discriminator(torch.fft.rfft(wave).abs())
        for step, judge in zip((1, 2), self.discriminators, strict=True):
            spectrum = spectrum + judge(wave[:, ::step])
        return spectrum

    def judges(self) -> list[nn.Parameter]:
        return [*self.stft_discriminator.parameters(), *self.discriminators.parameters()]


def train(healthy: bool = True, seed: int = 0, size: int = 16) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    codec = Codec(size)
    judge = torch.optim.SGD(codec.judges(), lr=0.05)
    waves = torch.sin(torch.arange(16) * (torch.rand(32, 1) + 0.2)) * 4
    losses, weights = [], []
    for _ in range(20):
        real, fake = codec.score(waves), codec.score(codec.coder(waves).detach())
        loss = torch.relu(1 - real).mean() + torch.relu(1 + fake).mean()
        judge.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(codec.stft_discriminator.parameters(), 0.5)
        if healthy:
            nn.utils.clip_grad_norm_(codec.discriminators.parameters(), 0.5)
        judge.step()
        losses.append(loss.item())
        weights.append(sum(p.abs().sum().item() for p in codec.discriminators.parameters()))
    return {"loss": losses, "weights": weights}
