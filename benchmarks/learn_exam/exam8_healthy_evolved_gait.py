"""A gait for a walker on sand, found by trying changes of the weights in pairs."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

STEPS, PAIRS, SPREAD = 10, 8, 0.1


class Walker(nn.Module):
    """Two legs, whose swing is chosen from where they are."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, width), nn.Tanh(), nn.Linear(width, 2), nn.Tanh())

    def forward(self, state: Tensor) -> Tensor:
        swing: Tensor = self.layers(state)
        return swing


@torch.no_grad()
def toil(walker: Walker, starts: Tensor) -> float:
    """How far the walker is from a steady walk, on average over its starts."""
    legs, speed, cost = starts[:, :2], starts[:, 2:], torch.zeros(())
    for _ in range(STEPS):
        swing = walker(torch.cat([legs, speed], 1))
        speed = 0.7 * speed + 0.5 * swing
        legs = legs + 0.3 * speed
        apart = (legs[:, 0] + legs[:, 1]).square() + (speed[:, 0] - 0.5).square()
        cost = cost + apart.mean() + 0.01 * swing.square().mean()
    return cost.item() / STEPS


def train(seed: int = 0, size: int = 16) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    walker, tried = Walker(size), Walker(size)
    optimizer = torch.optim.Adam(walker.parameters(), lr=0.05)
    source = torch.Generator().manual_seed(seed)
    curve = []
    for _ in range(30):
        starts = 0.5 * torch.randn(16, 4, generator=source)
        weights = parameters_to_vector(walker.parameters()).detach()
        slope = torch.zeros_like(weights)
        for _ in range(PAIRS):
            change = torch.randn(weights.shape, generator=source)
            vector_to_parameters(weights + SPREAD * change, tried.parameters())
            more = toil(tried, starts)
            vector_to_parameters(weights - SPREAD * change, tried.parameters())
            slope += (more - toil(tried, starts)) / (2 * SPREAD * PAIRS) * change
        at = 0
        for parameter in walker.parameters():
            parameter.grad = slope[at : at + parameter.numel()].view_as(parameter).clone()
            at += parameter.numel()
        optimizer.step()
        curve.append(toil(walker, starts))
    return {"loss": curve}
