"""Incomes of a census: each household's gradient is limited, and noise is added to their sum."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

FACTS, LIMIT, NOISE = 7, 1.0, 0.3


class Private:
    """Gradients of one batch, of which no household can be told."""

    def __init__(self, net: nn.Module, source: torch.Generator) -> None:
        self.net, self.source = net, source
        self.each = vmap(grad(self.loss), in_dims=(None, 0, 0))

    def loss(self, weights: dict[str, Tensor], facts: Tensor, income: Tensor) -> Tensor:
        found = functional_call(self.net, weights, (facts.unsqueeze(0),))
        return F.mse_loss(found, income.view(1, 1))

    def fill(self, facts: Tensor, income: Tensor) -> None:
        weights = {name: each.detach() for name, each in self.net.named_parameters()}
        grads = self.each(weights, facts, income)
        norms = torch.stack([each.flatten(1).norm(dim=1) for each in grads.values()]).norm(dim=0)
        part = (LIMIT / (norms + 1e-6)).clamp(max=1.0)
        for name, parameter in self.net.named_parameters():
            total = torch.einsum("b,b...->...", part, grads[name])
            noise = torch.randn(total.shape, generator=self.source)
            parameter.grad = (total + NOISE * LIMIT * noise) / len(facts)


def train(seed: int = 0, size: int = 16) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(FACTS, size), nn.Tanh(), nn.Linear(size, 1))
    private = Private(net, torch.Generator().manual_seed(seed))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.3, momentum=0.5)
    law = torch.randn(FACTS) / 2
    facts = torch.randn(200, FACTS)
    income = facts @ law
    curve = []
    for _ in range(40):
        chosen = torch.rand(len(facts)) < 0.2
        with torch.no_grad():
            curve.append(F.mse_loss(net(facts[chosen]).squeeze(1), income[chosen]).item())
        private.fill(facts[chosen], income[chosen])
        optimizer.step()
        optimizer.zero_grad()
    return {"loss": curve}
