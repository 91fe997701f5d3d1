"""A bfloat16 net with float32 weights and float32 sums of gradients over four micro-batches."""

from __future__ import annotations

import torch
from torch import Tensor, nn

MICRO = 4


class MainWeights:
    """Float32 copies of parameters, with a gradient that every backward pass adds to."""

    def __init__(self, net: nn.Module, always: bool) -> None:
        self.always = always
        self.pairs = [(p, p.detach().float().requires_grad_()) for p in net.parameters()]
        self.added: set[nn.Parameter] = set()
        for low, high in self.pairs:
            high.grad = torch.zeros_like(high)
            low.register_post_accumulate_grad_hook(self._take(high))

    def _take(self, high: Tensor):  # type: ignore[no-untyped-def]
        def take(low: nn.Parameter) -> None:
            assert low.grad is not None
            assert high.grad is not None
            if self.always or low not in self.added:
                high.grad += low.grad.float()
                self.added.add(low)
            low.grad = None

        return take

    def zero(self) -> None:
        self.added.clear()
        for _, high in self.pairs:
            assert high.grad is not None
            high.grad.zero_()

    @torch.no_grad()
    def publish(self) -> None:
        for low, high in self.pairs:
            low.copy_(high)


def train(healthy: bool = True, seed: int = 0, size: int = 32) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(10, size), nn.SiLU(), nn.Linear(size, 3)).bfloat16()
    main = MainWeights(net, always=healthy)
    optimizer = torch.optim.SGD([high for _, high in main.pairs], lr=0.3)
    rule = torch.randn(10, 3)
    losses = []
    for _ in range(30):
        main.zero()
        total = 0.0
        for _ in range(MICRO):
            x = torch.randn(16, 10)
            y = (x @ rule).argmax(-1)
            loss = nn.functional.cross_entropy(net(x.bfloat16()).float(), y)
            (loss / MICRO).backward()
            total += loss.item() / MICRO
        optimizer.step()
        main.publish()
        losses.append(total)
    return {"loss": losses}
