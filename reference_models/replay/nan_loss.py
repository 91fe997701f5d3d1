"""A training that ends in NaN: the loss takes the logarithm of a probability that is zero.

The loss multiplies the logarithm of every predicted probability by a one-hot vector.  A confident
model predicts zero for a wrong class, and zero times minus infinity is NaN.  Random flips of
pixels decide in which step that happens.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytest_trainsafe.record.context import Context


def train(
    ctx: Context,
    steps: int = 20,
    batch_size: int = 8,
    learning_rate: float = 0.5,
    checkpoint_every: int = 4,
) -> None:
    """Train for `steps` steps, and save a checkpoint after every `checkpoint_every` of them.

    Raises FloatingPointError in the first step whose loss is not finite.
    """
    import torch
    from torch import nn
    from torch.nn.functional import one_hot

    from pytest_trainsafe.judges.replay.checkpoints.instrument.checkpoint import ReplayCheckpoint
    from pytest_trainsafe.judges.replay.checkpoints.instrument.regenerate import fast_forward
    from pytest_trainsafe.reference_models.replay.checkpoints import Checkpoints
    from pytest_trainsafe.reference_models.replay.data import CLASSES, PIXELS, pictures

    x, y = pictures(64)
    x = x.to(ctx.dtype)
    model = nn.Sequential(nn.Linear(PIXELS, 32), nn.ReLU(), nn.Linear(32, CLASSES)).to(ctx.dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=learning_rate, momentum=0.9)
    replay = ReplayCheckpoint("nan-loss")
    rows = replay.regenerates("rows", lambda: torch.randperm(len(x)))
    checkpoints = Checkpoints(replay, model, optimizer, checkpoint_every)
    counters = checkpoints.restart()
    ctx.watch(model, optimizer)
    first, batches = counters.get("step", 0), len(x) // batch_size
    order = fast_forward(rows) if first % batches else None
    for step in range(first, steps):
        if step % batches == 0 or order is None:
            order = rows()
        with replay.first_step():
            chosen = order[(step % batches) * batch_size :][:batch_size]
            flips = torch.rand(batch_size, PIXELS, dtype=torch.float32) < 0.1
            batch = torch.where(flips, -x[chosen], x[chosen])
            with ctx.step():
                with ctx.microbatch(0):
                    predicted = model(batch).softmax(-1)
                    loss = -(one_hot(y[chosen], CLASSES) * predicted.log()).sum(-1).mean()
                    ctx.loss(loss)
                    if not loss.isfinite():
                        raise FloatingPointError(f"the loss is {loss.item()} in step {step}")
                    loss.backward()
                optimizer.step()
                optimizer.zero_grad()
        checkpoints.after(step + 1)
