"""A token classifier under context parallelism; ranks take every second token, in turn."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

ANNOTATIONS = {
    "cp_order": "striped",
    "loss": {"partial": ["cp"]},
    "modules": {"*": {"output": {"cp_dim": 1}}},
}


class Model(nn.Module):
    """Tokens to logits."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, 8)
        self.head = nn.Linear(8, 11)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(torch.tanh(self.embedding(tokens)))


def train(ctx: Any, fault: bool = False, order: str = "striped") -> None:
    """Two steps; with `fault`, a rank takes the labels of consecutive tokens."""
    size, rank = ctx.point.size("cp"), ctx.coordinates["cp"]
    model = Model().to(ctx.device, ctx.dtype)
    annotations = {**ANNOTATIONS, "cp_order": order}
    ctx.initialize(model, annotations=annotations)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    ctx.watch(model, optimizer, annotations=annotations)
    for step in range(2):
        with ctx.step():
            for index in ctx.microbatches(2):
                with ctx.microbatch(index):
                    generator = torch.Generator().manual_seed(10 * step + index)
                    tokens = torch.randint(11, (2, 9), generator=generator).to(ctx.device)
                    inputs, labels = tokens[:, :-1], tokens[:, 1:]
                    mine = labels.chunk(size, 1)[rank] if fault else labels[:, rank::size]
                    logits = model(inputs[:, rank::size].contiguous())
                    loss = F.cross_entropy(logits.flatten(0, 1), mine.flatten(), reduction="sum")
                    loss = loss / labels.numel() / 2
                    ctx.loss(loss)
                    loss.backward()
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad, group=ctx.group("cp"))
            optimizer.step()
            optimizer.zero_grad()
