"""Learns with weights and activations of eight bits; gradients pass straight through."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Round(torch.autograd.Function):
    @staticmethod
    def forward(ctx: object, x: Tensor, step: Tensor, bits: int) -> Tensor:
        top = 2 ** (bits - 1) - 1
        return torch.clamp(torch.round(x / step), -top - 1, top) * step

    @staticmethod
    def backward(ctx: object, grad: Tensor) -> tuple[Tensor, None, None]:  # type: ignore[override]
        return grad, None, None


class Observer(nn.Module):
    high: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("high", torch.tensor(1.0))
        self.watching = True

    def forward(self, x: Tensor) -> Tensor:
        if self.training and self.watching:
            self.high.mul_(0.9).add_(0.1 * x.detach().abs().max())
        rounded: Tensor = Round.apply(x, self.high / 127, 8)
        return rounded


class QuantLinear(nn.Linear):
    def __init__(self, fan_in: int, fan_out: int) -> None:
        super().__init__(fan_in, fan_out)
        self.observer = Observer()

    def forward(self, x: Tensor) -> Tensor:
        weight = Round.apply(self.weight, self.weight.detach().abs().max() / 127, 8)
        return nn.functional.linear(self.observer(x), weight, self.bias)


def train(seed: int = 0, size: int = 24) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    net = nn.Sequential(QuantLinear(9, size), nn.ReLU(), QuantLinear(size, 3))
    rule = torch.randn(9, 3)
    opt = torch.optim.Adam(net.parameters(), lr=8e-3)
    losses = []
    for step in range(48):
        if step == 36:
            for m in net.modules():
                if isinstance(m, Observer):
                    m.watching = False
        x = torch.randn(32, 9)
        loss = nn.functional.cross_entropy(net(x), (x @ rule).argmax(1))
        opt.zero_grad()
        loss.backward()
        opt.step()
        losses.append(loss.item())
    net.eval()
    return {"loss": losses}
