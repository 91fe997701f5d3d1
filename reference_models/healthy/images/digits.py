"""A small CNN on drawn digits: Adadelta, a step schedule, an evaluation after every epoch."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    """Two convolutions, dropout, two linear layers."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, channels, 3, 1)
        self.conv2 = nn.Conv2d(channels, 2 * channels, 3, 1)
        self.dropout = nn.Dropout(0.25)
        self.fc1 = nn.Linear(2 * channels * 16, 32)
        self.fc2 = nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Log-probabilities of the ten digits."""
        x = F.relu(self.conv1(x))
        x = F.relu(self.conv2(x))
        x = F.max_pool2d(x, 2)
        x = self.dropout(torch.flatten(x, 1))
        x = F.relu(self.fc1(x))
        return F.log_softmax(self.fc2(x), dim=1)


def _dataset(size: int, prototypes: Tensor) -> TensorDataset:
    labels = torch.arange(size) % 10
    return TensorDataset(prototypes[labels] + 0.3 * torch.randn(size, 1, 12, 12), labels)


def train(
    *, seed: int = 0, steps: int = 8, batch_size: int = 16, channels: int = 6, lr: float = 1.0
) -> list[float]:
    """Train for two epochs of `steps` / 2 batches."""
    torch.manual_seed(seed)
    prototypes = torch.randn(10, 1, 12, 12)
    train_loader = DataLoader(
        _dataset(batch_size * steps // 2, prototypes), batch_size=batch_size, shuffle=True
    )
    test_loader = DataLoader(_dataset(32, prototypes), batch_size=32)
    model = Net(channels)
    optimizer = torch.optim.Adadelta(model.parameters(), lr=lr)
    scheduler = StepLR(optimizer, step_size=1, gamma=0.7)
    losses = []
    for _epoch in range(2):
        model.train()
        for data, target in train_loader:
            optimizer.zero_grad()
            loss = F.nll_loss(model(data), target)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            losses.append(loss.item())
        model.eval()
        with torch.no_grad():
            for data, target in test_loader:
                F.nll_loss(model(data), target, reduction="sum")
        scheduler.step()
    return losses
