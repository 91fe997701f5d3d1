"""Fully sharded parameters, a language model: accumulation without reduction, clipping, AdamW."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_trainsafe.reference_models.training.outcome import Outcome

if TYPE_CHECKING:
    from pytest_trainsafe.record.context import Context


def train(
    ctx: Context, steps: int = 5, width: int = 16, accumulate: int = 2, max_norm: float = 1.0
) -> Outcome:
    """Learn a function of each token; each rank draws different tokens.

    A step accumulates the gradients of `accumulate` micro-batches, and reduces them over the ranks
    in its last backward only.
    """
    import torch
    from torch import nn
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import fully_shard
    from torch.nn import functional as F

    # Parameters are the same on all ranks; whatever is drawn later differs.
    torch.manual_seed(ctx.seed)
    mesh = DeviceMesh.from_group(ctx.group("dp"), "cpu")
    layers = [nn.Linear(width, width), nn.SiLU(), nn.Dropout(0.1), nn.LayerNorm(width)]
    model = nn.Sequential(nn.Embedding(12, width), *layers, nn.Linear(width, 12))
    sharded = fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-2)
    ctx.watch(model, optimizer, level="step")
    torch.manual_seed(1000 + 10 * ctx.seed + ctx.rank)
    outcome = Outcome()
    for _ in range(steps):
        with ctx.step():
            optimizer.zero_grad()
            total = 0.0
            for number in range(accumulate):
                sharded.set_requires_gradient_sync(number == accumulate - 1)
                tokens = torch.randint(12, (8, 6))
                scores = model(tokens).flatten(0, 1)
                loss = F.cross_entropy(scores, ((5 * tokens) % 12).flatten()) / accumulate
                loss.backward()  # type: ignore[no-untyped-call]
                total += loss.item()
            nn.utils.clip_grad_norm_(model.parameters(), max_norm)
            optimizer.step()
            outcome.losses.append(total)
    return outcome
