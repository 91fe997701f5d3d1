"""Half-precision weights, which are rounded at random and so need no copy in single precision.

A loss scale is kept by hand: it shrinks when a gradient is not finite, and that step is left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn


def round_at_random(x: Tensor) -> Tensor:
    """float32 to bfloat16: up or down with probabilities that make the mean exact."""
    bits = x.view(torch.int32)
    noise = torch.randint(0, 1 << 16, bits.shape, dtype=torch.int32)
    return ((bits + noise) & -65536).view(torch.float32).bfloat16()


@dataclass
class LossScale:
    value: float = 2.0**127
    good: int = 0

    def update(self, finite: bool) -> None:
        if not finite:
            self.value, self.good = self.value / 2**20, 0
        else:
            self.good += 1
            if self.good % 10 == 0:
                self.value *= 2


class HalfSGD:
    def __init__(self, params: Sequence[nn.Parameter], lr: float, momentum: float) -> None:
        self.params, self.lr, self.momentum = params, lr, momentum
        self.velocity = [torch.zeros_like(p, dtype=torch.float32) for p in params]

    @torch.no_grad()
    def step(self, scale: float) -> bool:
        grads = [p.grad.float() / scale for p in self.params if p.grad is not None]
        if not all(g.isfinite().all() for g in grads):
            return False
        for p, v, g in zip(self.params, self.velocity, grads, strict=True):
            v.mul_(self.momentum).add_(g)
            p.copy_(round_at_random(p.float() - self.lr * v))
        return True


def train(seed: int = 0, size: int = 48) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(9, size), nn.ReLU(), nn.Linear(size, 4)).bfloat16()
    sgd = HalfSGD(list(net.parameters()), lr=0.05, momentum=0.9)
    scale, rule = LossScale(), torch.randn(9, 4)
    losses = []
    for _ in range(30):
        x = torch.randn(48, 9)
        scores = net(x.bfloat16()).float()
        loss = nn.functional.cross_entropy(scores, (x @ rule).argmax(-1))
        net.zero_grad()
        (loss * scale.value).backward()
        scale.update(sgd.step(scale.value))
        losses.append(loss.item())
    return {"loss": losses}
