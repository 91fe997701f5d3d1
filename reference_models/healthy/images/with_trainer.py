"""A depthwise CNN trained by the trainer of `toolkit`: accumulation, clipping and workers."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

from pytest_trainsafe.reference_models.toolkit.trainer import Trainer


class Stripes(Dataset[tuple[Tensor, int]]):
    """Pictures with horizontal or vertical stripes; the index determines the picture."""

    def __init__(self, size: int, seed: int) -> None:
        self.size, self.seed = size, seed

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        noise = torch.randn(1, 10, 10, generator=torch.Generator().manual_seed(index + self.seed))
        stripe = torch.arange(10).remainder(2).float()
        pattern = stripe[None].expand(10, 10) if index % 2 else stripe[:, None].expand(10, 10)
        return 0.3 * noise + pattern, index % 2


def _loss(model: nn.Module, batch: list[Tensor]) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1])


def train(
    *, seed: int = 0, steps: int = 6, accumulation: int = 2, workers: int = 1, clip: float = 1.0
) -> list[float]:
    """Train two epochs of `steps` / 2 optimizer steps."""
    torch.manual_seed(seed)
    model = nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1),
        nn.Hardswish(),
        nn.Conv2d(8, 8, 3, padding=1, groups=8),
        nn.Conv2d(8, 12, 1),
        nn.Hardswish(),
        nn.AdaptiveMaxPool2d(2),
        nn.Flatten(),
        nn.Linear(48, 2),
    )
    dataset = Stripes(8 * accumulation * (steps // 2), seed)
    loader = DataLoader(dataset, batch_size=8, shuffle=True, num_workers=workers)
    optimizer = torch.optim.NAdam(model.parameters(), lr=1e-2)
    trainer = Trainer(
        model, optimizer, loader, _loss, epochs=2, accumulation=accumulation, clip=clip
    )
    return trainer.train()
