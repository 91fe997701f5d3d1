"""A later loop, which sorts parameters into groups, sets requires_grad to True for all of them."""

from __future__ import annotations

import torch
from torch import nn


def detector(width: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(3, width, 3), nn.SiLU(), nn.Conv2d(width, width, 3), nn.SiLU(),
        nn.Flatten(), nn.Linear(width * 16, 5),
    )  # fmt: skip


def parameter_groups(model: nn.Module, unfreeze: bool) -> list[dict[str, object]]:
    weights: list[nn.Parameter] = []
    biases: list[nn.Parameter] = []
    for name, parameter in model.named_parameters():
        if unfreeze:
            parameter.requires_grad = True
        (biases if name.endswith(".bias") else weights).append(parameter)
    return [{"params": weights, "weight_decay": 5e-4}, {"params": biases}]


def train(healthy: bool = True, seed: int = 0, size: int = 16) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    model = detector(size)
    freeze = [f"{layer}." for layer in (0, 2)]
    for name, parameter in model.named_parameters():
        parameter.requires_grad = not any(name.startswith(prefix) for prefix in freeze)
    frozen = model.get_parameter("0.weight")
    before = frozen.detach().clone()
    optimizer = torch.optim.SGD(
        parameter_groups(model, unfreeze=not healthy), lr=0.02, momentum=0.937, nesterov=True
    )
    images = torch.randn(32, 3, 8, 8)
    boxes = torch.cat([images.mean((2, 3)), images.std((2, 3))[:, :2]], 1)
    losses, moves = [], []
    for step in range(24):
        rows = torch.arange(step * 8, step * 8 + 8) % 32
        loss = nn.functional.mse_loss(model(images[rows]), boxes[rows])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        moves.append((frozen - before).abs().max().item())
    return {"loss": losses, "moved": moves}
