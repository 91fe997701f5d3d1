"""A rank whose expert got no sample drops the averaged gradient of the other rank."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor, nn


class Experts(nn.Module):
    """Two regressors; each batch is handed to one of them by its domain."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.trunk = nn.Linear(5, width)
        self.experts = nn.ModuleList(nn.Linear(width, 1) for _ in range(2))

    def forward(self, inputs: Tensor, domain: int) -> Tensor:
        return self.experts[domain](torch.tanh(self.trunk(inputs)))


def synchronize(model: nn.Module, fill: bool) -> None:
    """Averages gradients over ranks; a parameter that this rank did not use has none."""
    for parameter in model.parameters():
        mine = parameter.grad
        grad = torch.zeros_like(parameter) if mine is None else mine.clone()
        dist.all_reduce(grad)
        grad /= dist.get_world_size()
        if mine is not None or fill:
            parameter.grad = grad


def train(healthy: bool = True, seed: int = 0, size: int = 16) -> dict[str, list[float]]:
    if not dist.is_initialized():
        dist.init_process_group("gloo")
    torch.manual_seed(seed)
    model = Experts(size)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.5)
    inputs = torch.randn(40, 5)
    targets = torch.stack([inputs[:, 0], -inputs[:, 1]], 1)
    losses, spreads = [], []
    for step in range(20):
        domain = (dist.get_rank() + step // 5) % 2
        rows = torch.arange(step * 10, step * 10 + 10) % 40
        wanted = targets[rows, domain].unsqueeze(1)
        optimizer.zero_grad(set_to_none=True)
        loss = nn.functional.mse_loss(model(inputs[rows], domain), wanted)
        loss.backward()
        synchronize(model, fill=healthy)
        optimizer.step()
        losses.append(loss.item())
        total = torch.stack([p.detach().sum() for p in model.parameters()])
        other = total.clone()
        dist.all_reduce(other)
        spreads.append((2 * total - other).abs().max().item())
    return {"loss": losses, "spread": spreads}
