"""Gradients are clipped by value in a hook of each parameter."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def clipped(limit: float, grad: Tensor) -> Tensor:
    return grad.clamp(-limit, limit)


class Controller(nn.Module):
    """Copies a pattern after a pause with a recurrent cell."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.cell, self.out = nn.LSTMCell(5, width), nn.Linear(width, 5)

    def forward(self, inputs: Tensor) -> Tensor:
        state = None
        outs = []
        for moment in inputs.unbind(1):
            state = self.cell(moment, state)
            outs.append(self.out(state[0]))
        return torch.stack(outs, 1)


def train(seed: int = 0, size: int = 16) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    model = Controller(size)
    for parameter in model.parameters():
        parameter.register_hook(lambda grad: clipped(0.02, grad))
    optimizer = torch.optim.RMSprop(model.parameters(), lr=5e-3, momentum=0.5)
    losses = []
    for _ in range(30):
        pattern = torch.rand(16, 3, 5).round()
        inputs = torch.cat([pattern, torch.zeros(16, 3, 5)], 1)
        loss = nn.functional.binary_cross_entropy_with_logits(model(inputs)[:, 3:], pattern)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return {"loss": losses}
