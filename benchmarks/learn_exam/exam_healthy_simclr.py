"""Contrastive learning of two augmented views with the NT-Xent loss and an LARS-like step."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def nt_xent(first: Tensor, second: Tensor, temperature: float = 0.3) -> Tensor:
    count = len(first)
    z = nn.functional.normalize(torch.cat([first, second]), dim=1)
    scores = (z @ z.t() / temperature).masked_fill(torch.eye(2 * count).bool(), float("-inf"))
    partner = (torch.arange(2 * count) + count) % (2 * count)
    return nn.functional.cross_entropy(scores, partner)


class LayerScaledSGD(torch.optim.Optimizer):
    """SGD whose step of each tensor is relative to the norm of that tensor."""

    def __init__(self, parameters: list[nn.Parameter], lr: float) -> None:
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    trust = (parameter.norm() + 1e-2) / (parameter.grad.norm() + 1e-6)
                    parameter.sub_(group["lr"] * trust * parameter.grad)


def train(seed: int = 0, size: int = 16) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    encoder = nn.Sequential(nn.Linear(20, size), nn.BatchNorm1d(size), nn.ReLU())
    projector = nn.Linear(size, 8)
    optimizer = LayerScaledSGD([*encoder.parameters(), *projector.parameters()], lr=0.05)
    data = torch.randn(64, 20)
    losses = []
    for _ in range(20):
        rows = data[torch.randperm(64)[:32]]
        views = [rows * (torch.rand_like(rows) > 0.2) + 0.1 * torch.randn_like(rows) for _ in "ab"]
        loss = nt_xent(*(projector(encoder(view)) for view in views))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return {"loss": losses}
