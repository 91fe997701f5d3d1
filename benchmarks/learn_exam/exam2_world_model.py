"""A recurrent world model of a swinging arm, with gradients kept short by hand."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn


class WorldModel(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.memory = nn.LSTM(3, width, batch_first=True)
        self.next_state = nn.Linear(width, 2)

    def forward(self, states: Tensor, pushes: Tensor) -> Tensor:
        memory, _ = self.memory(torch.cat((states, pushes), dim=-1))
        change: Tensor = self.next_state(memory)
        return states + change


def shorten(parameters: Iterable[nn.Parameter], longest: float) -> float:
    grads = [p.grad for p in parameters if p.grad is not None]
    norm = nn.utils.get_total_norm(grads)
    nn.utils.clip_grads_with_norm_(parameters, longest, norm)
    return norm.item()


def swing(count: int, steps: int) -> tuple[Tensor, Tensor]:
    state = 2 * torch.randn(count, 2)
    pushes = torch.randn(count, steps, 1)
    states = [state]
    for step in range(steps):
        angle, speed = states[-1].unbind(1)
        speed = speed + 0.3 * (pushes[:, step, 0] - 2 * angle.sin())
        states.append(torch.stack((angle + 0.3 * speed, speed), dim=1))
    return torch.stack(states, dim=1), pushes


def train(healthy: bool = True, seed: int = 0, size: int = 16) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    model = WorldModel(size)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    losses, norms = [], []
    for _ in range(24):
        states, pushes = swing(16, 8)
        loss = (model(states[:, :-1], pushes) - states[:, 1:]).square().sum(-1).mean()
        optimizer.zero_grad()
        loss.backward()
        parameters: Iterable[nn.Parameter] = model.parameters()
        if healthy:
            parameters = list(parameters)
        norms.append(shorten(parameters, 0.25))
        optimizer.step()
        losses.append(loss.item())
    return {"loss": losses, "norm": norms}
