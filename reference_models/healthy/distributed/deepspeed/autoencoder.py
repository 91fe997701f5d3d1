"""An autoencoder trained with DeepSpeed and torch's SGD, and evaluated between steps.

The program's loop tells DeepSpeed's engine which micro-batch is the last of a step.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_trainsafe.reference_models.training.outcome import Outcome

if TYPE_CHECKING:
    from pytest_trainsafe.record.context import Context


def train(ctx: Context, steps: int = 5, parts: int = 2, hidden: int = 6, stage: int = 2) -> Outcome:
    """Compress points near a plane; the learning rate falls by torch's ExponentialLR."""
    import torch
    from torch import nn
    from torch.nn import functional as F

    from pytest_trainsafe.fixtures.deepspeed.engine import start

    deepspeed = start(ctx)
    torch.manual_seed(ctx.seed)
    model = nn.Sequential(
        nn.Linear(8, hidden), nn.Tanh(), nn.Dropout(0.1), nn.LayerNorm(hidden), nn.Linear(hidden, 8)
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    engine, _, _, _ = deepspeed.initialize(
        model=model,
        optimizer=optimizer,
        lr_scheduler=schedule,
        config={
            "train_micro_batch_size_per_gpu": 10,
            "zero_optimization": {"stage": stage},
            "zero_allow_untested_optimizer": True,
        },
    )
    ctx.watch(engine, level="step")
    data = torch.Generator().manual_seed(5 + ctx.seed + 11 * ctx.rank)
    plane = torch.randn(3, 8, generator=torch.Generator().manual_seed(ctx.seed))
    outcome = Outcome()
    for step in range(steps):
        total = 0.0
        engine.train()
        with ctx.step():
            for part in range(parts):
                engine.set_gradient_accumulation_boundary(part == parts - 1)
                points = torch.randn(10, 3, generator=data) @ plane
                loss = F.mse_loss(engine(points), points) / parts
                engine.backward(loss)
                total += loss.item()
            engine.step()
        outcome.losses.append(total)
        if step % 2 == 1:
            engine.eval()
            with torch.no_grad():
                engine(torch.randn(10, 3, generator=data) @ plane)
    return outcome
