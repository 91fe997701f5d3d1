"""Unfreezes a pretrained net layer by layer, with smaller rates below, and averages it."""

from __future__ import annotations

import copy
from typing import cast

import torch
from torch import Tensor, nn


class Average:
    def __init__(self, model: nn.Module, decay: float) -> None:
        self.model = copy.deepcopy(model).eval().requires_grad_(False)
        self.decay, self.seen = decay, 0

    @torch.no_grad()
    def update(self, model: nn.Module) -> None:
        self.seen += 1
        decay = min(self.decay, (1 + self.seen) / (10 + self.seen))
        for mine, theirs in zip(self.model.parameters(), model.parameters(), strict=True):
            mine.lerp_(theirs, 1 - decay)
        for kept, b in zip(self.model.buffers(), model.buffers(), strict=True):
            kept.copy_(b)


def train(seed: int = 0, size: int = 20) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    x = torch.randn(160, 9)
    first = torch.tanh(x @ torch.randn(9, 1))
    second = torch.tanh(x @ torch.randn(9, 1) + 0.5 * first)
    layers = nn.ModuleList(
        nn.Sequential(nn.Linear(a, size), nn.BatchNorm1d(size), nn.ReLU()) for a in (9, size, size)
    )
    net = nn.Sequential(*layers, nn.Linear(size, 1))
    pre = torch.optim.Adam(net.parameters(), lr=1e-2)
    for _ in range(12):
        pre.zero_grad()
        nn.functional.mse_loss(net(x), first).backward()
        pre.step()

    for layer in layers:
        layer.requires_grad_(False)
    net[3] = nn.Linear(size, 1)
    opt = torch.optim.Adam(net[3].parameters(), lr=2e-2)
    average = Average(net, decay=0.95)
    losses, averaged = [], []
    for epoch in range(4):
        if epoch:
            melted = cast("nn.Module", layers[3 - epoch])
            melted.requires_grad_(True)
            opt.add_param_group({"params": list(melted.parameters()), "lr": 2e-2 / 2.6**epoch})
        net.train()
        for at, layer in enumerate(layers):
            if at < 3 - epoch:
                layer.eval()
        for rows in torch.randperm(128).split(16):
            out: Tensor = net(x[rows])
            loss = nn.functional.mse_loss(out, second[rows])
            opt.zero_grad()
            loss.backward()
            opt.step()
            average.update(net)
            losses.append(loss.item())
        with torch.no_grad():
            averaged.append(nn.functional.mse_loss(average.model(x[128:]), second[128:]).item())
    return {"loss": losses, "averaged": averaged}
