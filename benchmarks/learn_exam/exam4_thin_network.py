"""Thins a network for a hearing aid: it learns, loses its smallest weights, and learns on."""

from __future__ import annotations

import copy
from typing import Protocol

import torch
from torch import Tensor, nn


class Mask(Protocol):
    def gradients(self) -> None: ...
    def weights(self) -> None: ...


def linear_weights(net: nn.Module) -> list[nn.Parameter]:
    return [layer.weight for layer in net.modules() if isinstance(layer, nn.Linear)]


class MagnitudeMask:
    """Keeps the largest weights of each layer; the others are set to zero when it is made."""

    def __init__(self, net: nn.Module, keep: float) -> None:
        self.entries: list[tuple[nn.Parameter, Tensor]] = []
        for weight in linear_weights(net):
            size = weight.detach().abs()
            border = size.flatten().quantile(1 - keep)
            self.entries.append((weight, size >= border))
        self.weights()

    @torch.no_grad()
    def weights(self) -> None:
        for weight, kept in self.entries:
            weight.mul_(kept)

    @torch.no_grad()
    def gradients(self) -> None:
        for weight, kept in self.entries:
            if weight.grad is not None:
                weight.grad.mul_(kept)

    def revived(self) -> float:
        return float(sum((weight[~kept] != 0).sum().item() for weight, kept in self.entries))


def amplified(x: Tensor) -> Tensor:
    return torch.tanh(x[:, :1] - x[:, 1:2]) + 0.5 * torch.relu(x[:, 2:3] + x[:, 3:4])


def step(
    net: nn.Module, sgd: torch.optim.Optimizer, rng: torch.Generator, mask: Mask | None
) -> Tensor:
    x = torch.randn(40, 10, generator=rng)
    loss = nn.functional.mse_loss(net(x), amplified(x))
    sgd.zero_grad()
    loss.backward()
    if mask is not None:
        mask.gradients()
    sgd.step()
    return loss.detach()


def train(healthy: bool = True, seed: int = 0, size: int = 32) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    rng = torch.Generator().manual_seed(seed + 21)
    net = nn.Sequential(
        nn.Linear(10, size), nn.Tanh(), nn.Linear(size, size), nn.Tanh(), nn.Linear(size, 1)
    )
    sgd = torch.optim.SGD(net.parameters(), lr=0.03, momentum=0.9)
    losses = [step(net, sgd, rng, None).item() for _ in range(60)]
    mask = MagnitudeMask(net, keep=0.3)
    revived, deployed = [], []
    test = torch.randn(200, 10, generator=rng)
    for _ in range(40):
        losses.append(step(net, sgd, rng, mask).item())
        if healthy:
            mask.weights()
        revived.append(mask.revived())
        device = copy.deepcopy(net)
        with torch.no_grad():
            for ours, (weight, kept) in zip(linear_weights(device), mask.entries, strict=True):
                ours.copy_(weight * kept)
            deployed.append(nn.functional.mse_loss(device(test), amplified(test)).item())
    return {"loss": losses, "revived": revived, "deployed": deployed}
