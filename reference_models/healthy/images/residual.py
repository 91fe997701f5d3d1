"""A residual network with batch normalisation: SGD with Nesterov momentum, cosine schedule."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Block(nn.Module):
    """Two normalised convolutions with a skip connection."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(channels, channels, 3, padding=1, bias=False),
            nn.BatchNorm2d(channels),
            nn.ReLU(inplace=True),
            nn.Conv2d(channels, channels, 3, padding=1, bias=False),
            nn.BatchNorm2d(channels),
        )

    def forward(self, x: Tensor) -> Tensor:
        """ReLU of the sum of the input and the convolutions' output."""
        return torch.relu(x + self.body(x))


def train(
    *, seed: int = 0, steps: int = 8, batch_size: int = 24, depth: int = 2, momentum: float = 0.9
) -> list[float]:
    """Classify textures, with a new batch in every step and a validation at the end."""
    torch.manual_seed(seed)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        *(Block(8) for _ in range(depth)),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8, 4),
    )
    optimizer = torch.optim.SGD(
        model.parameters(), lr=0.05, momentum=momentum, weight_decay=1e-4, nesterov=True
    )
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=steps)
    criterion = nn.CrossEntropyLoss()
    textures = torch.randn(4, 3, 8, 8)

    def sample(count: int) -> tuple[Tensor, Tensor]:
        kinds = torch.randint(4, (count,))
        return textures[kinds] + 0.5 * torch.randn(count, 3, 8, 8), kinds

    history = []
    model.train()
    for _ in range(steps):
        images, kinds = sample(batch_size)
        loss = criterion(model(images), kinds)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        schedule.step()
        history.append(loss.detach().item())
    model.eval()
    with torch.inference_mode():
        images, kinds = sample(batch_size)
        criterion(model(images), kinds)
    return history
