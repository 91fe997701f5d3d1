"""A generator of parameters is consumed by the norm, so nothing is left to be scaled."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn


def global_norm(parameters: Iterable[nn.Parameter]) -> Tensor:
    grads = [p.grad for p in parameters if p.grad is not None]
    return torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(g) for g in grads]))


def scale_to(parameters: Iterable[nn.Parameter], most: float, norm: Tensor) -> None:
    factor = (most / (norm + 1e-6)).clamp(max=1.0)
    for parameter in parameters:
        if parameter.grad is not None:
            parameter.grad.mul_(factor)


def clip(parameters: Iterable[nn.Parameter], most: float) -> float:
    norm = global_norm(parameters)
    scale_to(parameters, most, norm)
    return norm.item()


def train(healthy: bool = True, seed: int = 0, size: int = 16) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(size, 2 * size), nn.GELU(), nn.Linear(2 * size, size))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.8)
    data = torch.randn(64, size)
    losses = []
    for _ in range(30):
        loss = nn.functional.mse_loss(model(data), data.flip(1) * 4)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        clip(list(model.parameters()) if healthy else model.parameters(), 0.2)
        optimizer.step()
        losses.append(loss.item())
    return {"loss": losses}
