"""Small programs for the tests of relations: a linear model whose loss is a mean over samples."""

from __future__ import annotations

import torch
from torch import nn

from pytest_trainsafe import relations
from pytest_trainsafe.core.tensor_id import TensorId
from pytest_trainsafe.judges.metamorphic.relations import KEEP


def samples(first: int, count: int) -> torch.Tensor:
    """Samples as rows of sines; sample number `n` always has the same row."""
    numbers = torch.arange(first, first + count, dtype=torch.float64)
    return torch.sin(numbers[:, None] * torch.arange(1.0, 5.0, dtype=torch.float64))


@relations.hold(relations.Order(), relations.Split(), relations.Recompute())
def train(
    ctx,
    batch_size: int = 2,
    microbatches: int = 4,
    own_numbers: bool = False,
    shift: int = 0,
    unused: int = 0,
    noise: bool = False,
) -> None:
    """Train a linear model for one step.

    `own_numbers` numbers micro-batches without `ctx.microbatches`, `shift` rotates the rows of each
    micro-batch, `unused` has no effect, and `noise` adds draws from torch's generator.
    """
    model = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 1)).to(ctx.dtype)
    ctx.initialize(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    ctx.watch(model, optimizer)
    numbers = range(microbatches) if own_numbers else ctx.microbatches(microbatches)
    with ctx.step():
        for index in numbers:
            rows = samples(index * batch_size, batch_size).roll(shift, 0).to(ctx.dtype)
            if noise:
                rows = rows + 0.1 * torch.randn_like(rows)
            with ctx.microbatch(index):
                loss = model(rows).square().mean()
                ctx.loss(loss.detach())
                (loss / microbatches).backward()
        optimizer.step()
        optimizer.zero_grad()


class Rotated(relations.View):
    """Rotates the rows of the batch back."""

    def combine(self, id: TensorId, parts, like):
        if id.kind not in ("activation", "activation_grad", "input"):
            return KEEP
        return lambda tensors: tensors[0].roll(-1, 0)


class Shift(relations.Relation):
    """A relation that a project defines: the rows of each micro-batch in another order."""

    name = "shift"
    what = "the rows of a micro-batch in another order"
    suspects = "something depends on the position in the batch"

    def change(self, setting: relations.Setting) -> relations.Change:
        return relations.Change({"shift": setting.number("batch_size") + 1})

    def views(self, setting):
        return None, Rotated()
