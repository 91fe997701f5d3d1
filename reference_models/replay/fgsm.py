"""Adversarial training that differs from run to run.

The perturbations of randomised FGSM start from a generator that takes its seed from the operating
system, so that some trainings become robust and others do not. A checkpoint contains the state of
that generator, so a replay from it repeats the training that saved it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytest_trainsafe.record.context import Context


def train(
    ctx: Context,
    steps: int = 12,
    batch_size: int = 16,
    radius: float = 0.6,
    seed: int | None = None,
    checkpoint_every: int = 4,
) -> float:
    """Train for `steps` steps; returns the accuracy under attack.

    If `seed` is None, the operating system provides the seed.
    """
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
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    starts = torch.Generator()
    if seed is None:
        starts.seed()
    else:
        starts.manual_seed(seed)
    replay = ReplayCheckpoint("fgsm", generators={"starts": starts})
    checkpoints = Checkpoints(replay, model, optimizer, checkpoint_every)
    counters = checkpoints.restart()
    ctx.watch(model, optimizer)

    def attacked(batch: torch.Tensor, classes: torch.Tensor, begin: torch.Tensor) -> torch.Tensor:
        moved = (batch + begin).requires_grad_()
        [gradient] = torch.autograd.grad(cross_entropy(model(moved), classes), [moved])
        return batch + (begin + radius / 2 * gradient.sign()).clamp(-radius, radius)

    for step in range(counters.get("step", 0), steps):
        with replay.first_step():
            rows = torch.randperm(len(x), generator=starts)[:batch_size]
            drawn = torch.rand(batch_size, PIXELS, generator=starts, dtype=torch.float32)
            begin = (radius * (drawn - 0.5)).to(ctx.dtype)
            batch = attacked(x[rows], y[rows], begin)
            with ctx.step():
                with ctx.microbatch(0):
                    loss = cross_entropy(model(batch), y[rows])
                    ctx.loss(loss)
                    loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
                optimizer.zero_grad()
        checkpoints.after(step + 1)
    return accuracy(model, attacked(x, y, torch.zeros_like(x)), y)
