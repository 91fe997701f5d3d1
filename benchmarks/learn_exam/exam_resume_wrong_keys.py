"""Names in the checkpoint have a prefix, and strict=False loads none of them without a word."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Net(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Linear(9, width), nn.ReLU())
        self.output = nn.Linear(width, 3)

    def forward(self, rows: Tensor) -> Tensor:
        return self.output(self.features(rows))


class Lightning(nn.Module):
    """The wrapper that was trained; its attribute `model` is the network."""

    def __init__(self, model: Net) -> None:
        super().__init__()
        self.model = model

    def loss(self, rows: Tensor, labels: Tensor) -> Tensor:
        return nn.functional.cross_entropy(self.model(rows), labels)


def fit(module: Lightning, rows: Tensor, labels: Tensor, steps: int) -> list[float]:
    optimizer = torch.optim.Adam(module.parameters(), lr=1e-2)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = module.loss(rows, labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def train(healthy: bool = True, seed: int = 0, size: int = 16) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    rows = torch.randn(60, 9)
    labels = rows[:, :3].argmax(1)
    pretrained = Lightning(Net(size))
    losses = fit(pretrained, rows, labels, 20)
    state = pretrained.state_dict()
    if healthy:
        state = {name.removeprefix("model."): value for name, value in state.items()}
    network = Net(size)
    network.load_state_dict(state, strict=False)
    return {"loss": losses + fit(Lightning(network), rows, labels, 10)}
