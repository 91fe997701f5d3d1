"""A model that each of two pipeline stages builds whole, with stand-ins for the other's modules.

With `predict` the last stage has a copy of the embedding instead, and calls it on shifted tokens,
as multi-token prediction does.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

HIDDEN, TOKENS, LAYERS = 8, 12, 2


class PassOn(nn.Module):
    """A stand-in of a class of the program, which returns its input."""

    def forward(self, hidden: Tensor) -> Tensor:
        return hidden


class Layer(nn.Module):
    def __init__(self, bug: str) -> None:
        super().__init__()
        self.linear = nn.Linear(HIDDEN, HIDDEN)
        self.bug = bug

    def forward(self, hidden: Tensor) -> Tensor:
        return self.linear(hidden).tanh() * (1.01 if self.bug else 1.0)


class Model(nn.Module):
    def __init__(self, bug: str, predict: bool) -> None:
        super().__init__()
        self.embedding: nn.Module = nn.Embedding(TOKENS, HIDDEN)
        self.layers = nn.ModuleList(Layer(bug if n == 1 else "") for n in range(LAYERS))
        self.norm: nn.Module = nn.LayerNorm(HIDDEN)
        self.head: nn.Module = nn.Linear(HIDDEN, TOKENS)
        self.predict = predict
        self.first = self.last = True

    def cut(self, stage: int) -> None:
        """Replace the modules of the other stage by stand-ins."""
        self.first, self.last = stage == 0, stage == 1
        self.layers[1 - stage] = PassOn()
        if self.last and not self.predict:
            self.embedding = nn.Identity()
        if self.first:
            self.norm, self.head = nn.Identity(), PassOn()

    def forward(self, hidden: Tensor, tokens: Tensor) -> Tensor:
        if self.first or not self.predict:
            hidden = self.embedding(tokens if self.first else hidden)
        for layer in self.layers:
            hidden = layer(hidden)
        if self.last and self.predict:
            hidden = hidden + self.embedding(tokens.roll(-1))
        return self.head(self.norm(hidden))


def train(ctx: Any, bug: str = "", predict: bool = False) -> None:
    pp, here, group = ctx.point.size("pp"), ctx.coordinates["pp"], ctx.group("pp")
    model = Model(bug if pp > 1 else "", predict)
    if pp > 1:
        model.cut(here)
        if predict:
            model.embedding.weight.shared_embedding = True  # type: ignore[union-attr]
    model = model.to(ctx.device, ctx.dtype)
    ctx.initialize(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    ctx.watch(model, optimizer)
    with ctx.step():
        for index in ctx.microbatches(2):
            data = torch.Generator().manual_seed(index)
            tokens = torch.randint(TOKENS, (5,), generator=data)
            hidden = torch.zeros(5, HIDDEN, dtype=ctx.dtype)
            with ctx.microbatch(index):
                if here:
                    dist.recv(hidden, dist.get_global_rank(group, 0), group=group)
                    hidden.requires_grad_()
                left = model(hidden, tokens)
                if here == pp - 1:
                    loss = left.square().mean()
                    ctx.loss(loss)
                    loss.backward()
                else:
                    dist.send(left.detach(), dist.get_global_rank(group, 1), group=group)
                    gradient = torch.empty_like(left)
                    dist.recv(gradient, dist.get_global_rank(group, 1), group=group)
                    left.backward(gradient)
                if here:
                    assert hidden.grad is not None
                    dist.send(hidden.grad, dist.get_global_rank(group, 0), group=group)
        if predict and pp > 1:
            dist.all_reduce(model.embedding.weight.grad, group=group)
        optimizer.step()
