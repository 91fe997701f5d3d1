"""A task object that recognises the pitch of short waves, heard through noise."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset


class Waves(Dataset[tuple[Tensor, Tensor]]):
    def __init__(self, count: int, transform: Callable[[Tensor], Tensor]) -> None:
        self.pitch = torch.arange(count) % 4
        time = torch.linspace(0, 6.28, 32)
        phase = torch.rand(count, 1) * 6.28
        self.wave = torch.sin((self.pitch + 1).unsqueeze(1) * time + phase)
        self.transform = transform

    def __len__(self) -> int:
        return len(self.pitch)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.transform(self.wave[index]), self.pitch[index]


class PitchTask:
    def __init__(self, width: int) -> None:
        self.net = nn.Sequential(
            nn.Unflatten(1, (1, 32)), nn.Conv1d(1, width, 7, stride=2, padding=3), nn.GELU(),
            nn.Conv1d(width, width, 5, stride=2, padding=2), nn.GELU(),
            nn.AdaptiveMaxPool1d(1), nn.Flatten(), nn.Linear(width, 4),
        )  # fmt: skip
        self.optim = torch.optim.Adam(self.net.parameters(), lr=1e-2)
        self.history: list[float] = []

    def fit_batch(self, wave: Tensor, pitch: Tensor) -> None:
        self.optim.zero_grad()
        loss = nn.functional.cross_entropy(self.net(wave), pitch)
        loss.backward()
        self.optim.step()
        self.history.append(loss.item())


def train(healthy: bool = True, seed: int = 0, size: int = 16) -> dict[str, list[float]]:
    torch.manual_seed(seed)

    def add_noise(wave: Tensor) -> Tensor:
        noise = 0.4 * torch.randn(wave.shape)
        if healthy:
            wave = wave + noise
        else:
            wave += noise
        return wave

    loader = DataLoader(Waves(48, add_noise), batch_size=12, shuffle=True)
    task = PitchTask(size)
    for _ in range(7):
        for wave, pitch in loader:
            task.fit_batch(wave, pitch)
    return {"loss": task.history}
