"""Two tasks share a trunk; a gradient that opposes the other loses the part that opposes it."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss
from torch.nn.utils import parameters_to_vector

Params = list[nn.Parameter]


def gradient(loss: Tensor, params: Params) -> Tensor:
    found = torch.autograd.grad(loss, params, retain_graph=True)
    return parameters_to_vector(found)


def without_conflict(one: Tensor, other: Tensor) -> Tensor:
    dot = one @ other
    return one - dot.clamp(max=0) / (other @ other + 1e-12) * other


def give(flat: Tensor, params: Params) -> None:
    start = 0
    for p in params:
        p.grad = flat[start : start + p.numel()].view_as(p).clone()
        start += p.numel()


def train(seed: int = 0, size: int = 24) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    trunk = nn.Sequential(nn.Linear(8, size), nn.ReLU(), nn.Linear(size, size), nn.ReLU())
    depth_head, class_head = nn.Linear(size, 1), nn.Linear(size, 3)
    shared = list(trunk.parameters())
    own = [*depth_head.parameters(), *class_head.parameters()]
    optimizer = torch.optim.Adam([{"params": shared, "lr": 5e-3}, {"params": own, "lr": 1e-2}])
    law, split = torch.randn(8), torch.randn(8, 3)
    history = []
    for _ in range(28):
        x = torch.randn(40, 8)
        h = trunk(x)
        depth = mse_loss(depth_head(h).squeeze(-1), torch.tanh(x @ law))
        kind = cross_entropy(class_head(h), (x @ split).argmax(-1))
        one, other = gradient(depth, shared), gradient(kind, shared)
        give(without_conflict(one, other) + without_conflict(other, one), shared)
        for p, g in zip(own, torch.autograd.grad(depth + kind, own), strict=True):
            p.grad = g
        optimizer.step()
        history.append(float(depth + kind))
    return {"loss": history}
