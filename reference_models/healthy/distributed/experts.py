"""Experts on two ranks with sequences of different lengths; the rest of the model is replicated."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_trainsafe.reference_models.training.outcome import Outcome

if TYPE_CHECKING:
    from pytest_trainsafe.record.context import Context


def train(
    ctx: Context, steps: int = 4, drop_tokens: bool = True, factor: float = 1.25, width: int = 10
) -> Outcome:
    """Learn to copy tokens through experts."""
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.nn import functional as F

    from pytest_trainsafe.reference_models.toolkit.devices import place
    from pytest_trainsafe.reference_models.toolkit.experts import ExpertsLayer

    torch.manual_seed(ctx.seed)
    group = ctx.group("dp")
    layer = ExpertsLayer(width, group, factor=factor, drop_tokens=drop_tokens)
    place(layer.expert, ctx.rank)
    model = nn.ModuleDict(
        {"enter": nn.Embedding(14, width), "layer": layer, "leave": nn.Linear(width, 14)}
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-2)
    ctx.watch(model, optimizer, level="step")
    data = torch.Generator().manual_seed(5 + ctx.seed + ctx.rank)
    outcome = Outcome()
    for step in range(steps):
        with ctx.step():
            tokens = torch.randint(14, (12 + 2 * ((step + ctx.rank) % 2),), generator=data)
            scores = model["leave"](model["layer"](model["enter"](tokens)))
            loss = F.cross_entropy(scores, tokens)
            loss.backward()  # type: ignore[no-untyped-call]
            for name, parameter in model.named_parameters():
                if not name.startswith("layer.expert.") and parameter.grad is not None:
                    dist.all_reduce(parameter.grad, group=group)
                    parameter.grad /= ctx.world_size
            optimizer.step()
            optimizer.zero_grad()
            outcome.losses.append(loss.item())
    return outcome
