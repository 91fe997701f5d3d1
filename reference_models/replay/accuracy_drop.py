"""A training whose accuracy drops in one step: a rare augmentation makes a very large gradient.

The contrast of each batch is drawn from a distribution with a heavy tail.  Most draws do no harm.
Once, the gradient is large enough for the learning rate to throw the weights far away.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytest_trainsafe.record.context import Context


def train(
    ctx: Context,
    steps: int = 12,
    batch_size: int = 16,
    learning_rate: float = 0.1,
    spread: float = 1.5,
    checkpoint_every: int = 4,
) -> dict[int, float]:
    """Train for `steps` steps; returns the accuracy on clean pictures after each step that ran."""
    import torch
    from torch import nn
    from torch.nn.functional import cross_entropy

    from pytest_trainsafe.judges.replay.checkpoints.instrument.checkpoint import ReplayCheckpoint
    from pytest_trainsafe.reference_models.replay.checkpoints import Checkpoints
    from pytest_trainsafe.reference_models.replay.data import (
        CLASSES,
        PIXELS,
        accuracy,
        pictures,
    )

    x, y = pictures(64)
    x = x.to(ctx.dtype)
    model = nn.Sequential(nn.Linear(PIXELS, 32), nn.ReLU(), nn.Linear(32, CLASSES)).to(ctx.dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=learning_rate)
    replay = ReplayCheckpoint("accuracy-drop")
    checkpoints = Checkpoints(replay, model, optimizer, checkpoint_every)
    counters = checkpoints.restart()
    ctx.watch(model, optimizer)
    accuracies = {}
    for step in range(counters.get("step", 0), steps):
        with replay.first_step():
            rows = torch.randperm(len(x))[:batch_size]
            contrast = float(torch.randn((), dtype=torch.float32).mul(spread).exp())
            with ctx.step():
                with ctx.microbatch(0):
                    loss = cross_entropy(model(contrast * x[rows]), y[rows])
                    ctx.loss(loss)
                    loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
                optimizer.zero_grad()
        accuracies[step] = accuracy(model, x, y)
        checkpoints.after(step + 1)
    return accuracies
