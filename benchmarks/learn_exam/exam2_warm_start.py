"""A run in two parts: the second one starts from the file that the first has written."""

from __future__ import annotations

import io

import torch
from torch import Tensor, nn


class Task(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def training_step(self, inputs: Tensor, answers: Tensor) -> Tensor:
        return nn.functional.smooth_l1_loss(self.model(inputs).squeeze(1), answers)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.RMSprop(self.parameters(), lr=3e-3)


def build(width: int) -> nn.Module:
    return nn.Sequential(
        nn.Linear(5, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 1)
    )


def fit(task: Task, steps: int) -> list[float]:
    optimizer = task.configure_optimizers()
    losses = []
    for _ in range(steps):
        inputs = torch.randn(32, 5)
        answers = inputs[:, 0] * 1.5 - inputs[:, 1:3].sum(1) + 2
        loss = task.training_step(inputs, answers)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def train(healthy: bool = True, seed: int = 0, size: int = 16) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    first = Task(build(size))
    losses = fit(first, 16)
    file = io.BytesIO()
    torch.save({"state_dict": first.state_dict()}, file)
    file.seek(0)
    weights = torch.load(file, weights_only=True)["state_dict"]
    if healthy:
        weights = {name.removeprefix("model."): value for name, value in weights.items()}
    model = build(size)
    model.load_state_dict(weights, strict=False)
    losses += fit(Task(model), 14)
    return {"loss": losses}
