"""PyTorch forum 84911 (TrainCheck's B1): a fine-tuned classifier that does not learn.

https://discuss.pytorch.org/t/obtaining-abnormal-changes-in-loss-and-accuracy/84911: the author
freezes every parameter whose name lacks "bn", freezes the last layer too, and hands that layer
alone to the optimizer.  Nothing that the optimizer holds is trained; batch normalisation goes on
updating its statistics, so that the loss still moves.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from pytest_trainsafe.reference_models.training.outcome import Outcome


class Classifier(nn.Module):
    """Two convolutions with batch normalisation, and a linear layer."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.conv2, self.bn2 = nn.Conv2d(8, 16, 3, stride=2, padding=1), nn.BatchNorm2d(16)
        self.fc = nn.Linear(16, classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """The scores of every class."""
        hidden = F.relu(self.bn1(self.conv1(images)))
        hidden = F.relu(self.bn2(self.conv2(hidden)))
        scores: torch.Tensor = self.fc(hidden.mean(dim=(2, 3)))
        return scores


def train(*, faulty: bool, seed: int = 0, steps: int = 6) -> Outcome:
    """Fine-tune the last layer; with the error it is frozen as well."""
    torch.manual_seed(seed)
    model = Classifier(classes=4)
    for name, parameter in model.named_parameters():
        if "bn" not in name and (faulty or not name.startswith("fc.")):
            parameter.requires_grad = False
    before = model.fc.weight.detach().clone()
    optimizer = torch.optim.Adam(model.fc.parameters(), lr=1e-2)
    losses = []
    for _ in range(steps):
        labels = torch.randint(4, (16,))
        images = torch.randn(16, 1, 8, 8) + labels.view(-1, 1, 1, 1)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(images), labels)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        losses.append(loss.item())
    moved = float((model.fc.weight.detach() - before).abs().max())
    assert model.bn1.running_mean is not None
    return Outcome(losses, {"moved": moved, "statistics": float(model.bn1.running_mean.norm())})
