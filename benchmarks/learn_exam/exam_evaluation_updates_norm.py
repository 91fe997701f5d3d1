"""The validation step goes to train mode for the sake of losses, which moves batch norms."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Regions(nn.Module):
    """A detector that returns losses for targets, whatever its mode, in `losses`."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, width, 3), nn.BatchNorm2d(width), nn.ReLU(), nn.AdaptiveAvgPool2d(2)
        )
        self.ellipse = nn.Linear(4 * width, 3)

    def losses(self, images: Tensor, targets: Tensor) -> Tensor:
        found = self.ellipse(self.features(images).flatten(1))
        return nn.functional.smooth_l1_loss(found, targets)


class Module:
    def __init__(self, width: int, wrong: bool) -> None:
        self.model, self.wrong = Regions(width), wrong

    def training_step(self, images: Tensor, targets: Tensor) -> Tensor:
        self.model.train()
        return self.model.losses(images, targets)

    @torch.no_grad()
    def validation_step(self, images: Tensor, targets: Tensor) -> Tensor:
        self.model.train(self.wrong)
        return self.model.losses(images, targets)


def train(healthy: bool = True, seed: int = 0, size: int = 16) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    module = Module(size, wrong=not healthy)
    optimizer = torch.optim.AdamW(module.model.parameters(), lr=1e-2)
    images = torch.randn(40, 1, 8, 8)
    images[32:] += 3  # other light in the validation set
    targets = torch.stack([images.mean((1, 2, 3)), images[:, 0, 0, 0], images.amax((1, 2, 3))], 1)
    losses, shifts = [], []
    for _ in range(6):
        for rows in torch.randperm(32).split(8):
            loss = module.training_step(images[rows], targets[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        before = module.model.get_buffer("features.1.running_mean").clone()
        module.validation_step(images[32:], targets[32:])
        after = module.model.get_buffer("features.1.running_mean")
        shifts.append((after - before).abs().max().item())
    return {"loss": losses, "shift": shifts}
