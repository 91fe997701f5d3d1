"""A tensor-parallel MLP whose tensors have the types of spmd_types, checked while it trains."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

ANNOTATIONS = {
    "parameters": {"up.weight": {"tp_dim": 0}, "down.weight": {"tp_dim": 1}},
    "modules": {"up": {"output": {"tp_dim": -1}}, "down": {"output": {"tp_partial": True}}},
}


class MLP(nn.Module):
    """With `reduced=False`, the type of the sum is stated, and nothing is summed."""

    def __init__(self, group: Any, size: int, reduced: bool) -> None:
        super().__init__()
        self.up = nn.Linear(8, 16 // size, bias=False)
        self.down = nn.Linear(16 // size, 8, bias=False)
        self.group, self.reduced = group, reduced

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        import spmd_types as spmd

        x = spmd.convert(x, self.group, src=spmd.I, dst=spmd.R)
        y = self.down(torch.relu(self.up(x)))
        spmd.assert_type(y, {self.group: spmd.P})
        if self.reduced:
            return spmd.all_reduce(y, self.group, src=spmd.P, dst=spmd.I)
        with spmd.no_typecheck():
            stated = y * 1.0
        return spmd.assert_type(stated, {self.group: spmd.I})


def train(ctx: Any, reduced: bool = True) -> None:
    import spmd_types as spmd
    from spmd_types import checker

    group = ctx.group("tp")
    model = MLP(group, ctx.point.size("tp"), reduced).to(ctx.device, ctx.dtype)
    ctx.initialize(model, annotations=ANNOTATIONS)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    ctx.watch(model, optimizer, annotations=ANNOTATIONS)
    for step in range(2):
        with ctx.step():
            for index in ctx.microbatches(2):
                generator = torch.Generator().manual_seed(10 * step + index)
                x, target = torch.randn(2, 4, 8, generator=generator).to(ctx.dtype)
                with ctx.microbatch(index), checker.typecheck():
                    spmd.assert_type(x, {group: spmd.I})
                    spmd.assert_type(target, {group: spmd.I})
                    for parameter in model.parameters():
                        spmd.assert_type(parameter, {group: spmd.V})
                    loss = (model(x) - target).square().mean() / 2
                    ctx.loss(loss)
                    loss.backward()
            optimizer.step()
            optimizer.zero_grad()
