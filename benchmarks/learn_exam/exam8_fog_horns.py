"""Which ship a fog horn belongs to, with a learning rate that is lowered on plateaus.

Follows https://github.com/md-mohaiminul/ViS4mer/issues/4.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim.lr_scheduler import ReduceLROnPlateau
from torch.utils.data import DataLoader, TensorDataset, random_split

SAMPLES, SHIPS = 32, 5


class Ear(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.waves = nn.Sequential(
            nn.Conv1d(1, width, 7, stride=2, padding=3),
            nn.GroupNorm(4, width),
            nn.ReLU(),
            nn.Conv1d(width, width, 5, stride=2, padding=2),
            nn.ReLU(),
            nn.AdaptiveAvgPool1d(2),
            nn.Flatten(),
        )
        self.ships = nn.Linear(2 * width, SHIPS)

    def forward(self, sound: Tensor) -> Tensor:
        scores: Tensor = self.ships(self.waves(sound))
        return scores


def horns(count: int) -> TensorDataset:
    ship = torch.randint(SHIPS, (count,))
    time = torch.linspace(0, 6.3, SAMPLES)
    pitch = (ship + 2).unsqueeze(1) * (1 + 0.05 * torch.randn(count, 1))
    sound = (pitch * time + 6.3 * torch.rand(count, 1)).sin() + 0.4 * torch.randn(count, SAMPLES)
    return TensorDataset(sound.unsqueeze(1), ship)


@torch.no_grad()
def accuracy(ear: Ear, loader: DataLoader[tuple[Tensor, ...]]) -> float:
    ear.eval()
    right = [(ear(sound).argmax(1) == ship).float() for sound, ship in loader]
    ear.train()
    return torch.cat(right).mean().item()


def train(healthy: bool = True, seed: int = 0, size: int = 16) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    heard, held = random_split(horns(200), [152, 48])
    ear = Ear(size)
    optimizer = torch.optim.SGD(ear.parameters(), lr=0.1, momentum=0.9)
    mode = {"mode": "max"} if healthy else {}
    plateaus = ReduceLROnPlateau(optimizer, factor=0.4, patience=1, **mode)  # type: ignore[arg-type]
    log: dict[str, list[float]] = {"loss": [], "rate": []}
    for _ in range(9):
        for sound, ship in DataLoader(heard, batch_size=19, shuffle=True):
            loss = F.cross_entropy(ear(sound), ship)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            log["loss"].append(loss.item())
        plateaus.step(accuracy(ear, DataLoader(held, batch_size=48)))
        log["rate"].append(optimizer.param_groups[0]["lr"])
    return log
