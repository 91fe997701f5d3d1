"""Adversarial training by projected gradient descent, with every kind of random number.

Each epoch shuffles the data in place, with its own generator. Each batch is trained on twice: as it
is, and under a perturbation that starts at random noise. Dropout draws from torch's default
generator.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

    from pytest_trainsafe.record.context import Context


def train(
    ctx: Context,
    epochs: int = 3,
    examples: int = 32,
    batch_size: int = 16,
    attack_steps: int = 3,
    checkpoint_every: int = 2,
) -> None:
    """Train for `epochs` epochs, with a plain and an adversarial optimizer step for each batch."""
    import torch
    from torch import nn
    from torch.nn.functional import cross_entropy

    from pytest_trainsafe.judges.replay.checkpoints.instrument.checkpoint import ReplayCheckpoint
    from pytest_trainsafe.judges.replay.checkpoints.instrument.regenerate import fast_forward
    from pytest_trainsafe.reference_models.replay.checkpoints import Checkpoints
    from pytest_trainsafe.reference_models.replay.data import CLASSES, PIXELS, pictures

    x, y = pictures(examples)
    x = x.to(ctx.dtype)
    model = nn.Sequential(nn.Linear(PIXELS, 32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, CLASSES))
    model.to(ctx.dtype)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    shuffling = torch.Generator().manual_seed(ctx.seed + 1)
    noise = torch.Generator().manual_seed(ctx.seed + 2)
    replay = ReplayCheckpoint("pgd", generators={"shuffle": shuffling, "noise": noise})
    order = torch.arange(examples)

    def shuffle() -> None:
        order.copy_(order[torch.randperm(examples, generator=shuffling)])

    shuffled = replay.regenerates("order", shuffle, keep="all")
    checkpoints = Checkpoints(replay, model, optimizer, checkpoint_every)
    counters = checkpoints.restart()
    ctx.watch(model, optimizer)

    def fit(batch: Tensor, classes: Tensor) -> None:
        with ctx.step():
            with ctx.microbatch(0):
                loss = cross_entropy(model(batch), classes)
                ctx.loss(loss)
                loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            optimizer.zero_grad()

    def attacked(batch: Tensor, classes: Tensor) -> Tensor:
        start = torch.randn(batch.shape, generator=noise, dtype=torch.float32).to(batch)
        moved = batch + 0.1 * start
        for _ in range(attack_steps):
            moved = moved.detach().requires_grad_()
            loss = cross_entropy(model(moved), classes)
            [gradient] = torch.autograd.grad(loss, [moved])
            moved = batch + (moved + 0.1 * gradient.sign() - batch).clamp(-0.3, 0.3)
        return moved.detach()

    first, batches = counters.get("batch", 0), examples // batch_size
    if first:
        fast_forward(shuffled)
    for number in range(first, epochs * batches):
        if number % batches == 0:
            shuffled()
        rows = order[(number % batches) * batch_size :][:batch_size]
        with replay.first_step():
            fit(x[rows], y[rows])
            fit(attacked(x[rows], y[rows]), y[rows])
        checkpoints.after(2 * (number + 1), batch=number + 1)
