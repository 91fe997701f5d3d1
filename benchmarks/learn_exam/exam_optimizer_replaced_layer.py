"""The optimizer is built before the norms are replaced, so it holds parameters that are gone."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def block(channels: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(channels, channels, 3, padding=1), nn.BatchNorm2d(channels), nn.ReLU()
    )


def with_group_norm(model: nn.Module) -> nn.Module:
    """Replaces each batch norm in `model` by a group norm and the head by a new one."""
    for name, child in model.named_children():
        if isinstance(child, nn.BatchNorm2d):
            setattr(model, name, nn.GroupNorm(2, child.num_features))
        elif isinstance(child, nn.Linear):
            setattr(model, name, nn.Linear(child.in_features, child.out_features))
        else:
            with_group_norm(child)
    return model


def train(healthy: bool = True, seed: int = 0, size: int = 16) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    model: nn.Module = nn.Sequential(
        nn.Conv2d(1, size, 3),
        block(size),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(size, 2),
    )
    if healthy:
        model = with_group_norm(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    if not healthy:
        model = with_group_norm(model)

    images = torch.randn(64, 1, 8, 8)
    labels = (images[:, 0, :4].abs().mean((1, 2)) > images[:, 0, 4:].abs().mean((1, 2))).long()
    images[labels == 1] *= 2

    def batch(step: int) -> tuple[Tensor, Tensor]:
        rows = torch.arange(step * 16, step * 16 + 16) % 64
        return images[rows], labels[rows]

    losses = []
    for step in range(16):
        inputs, wanted = batch(step)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs), wanted)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    head = model.get_submodule("4")
    assert isinstance(head, nn.Linear)
    return {"loss": losses, "head": [head.weight.abs().sum().item()]}
