"""DeepSpeed without accumulation: a CNN with batch normalisation, Adam and WarmupLR."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_trainsafe.reference_models.training.outcome import Outcome

if TYPE_CHECKING:
    from pytest_trainsafe.record.context import Context


def train(ctx: Context, steps: int = 5, channels: int = 6, stage: int = 0) -> Outcome:
    """Classify filled and hollow squares; `stage` is that of ZeRO."""
    import torch
    from torch import nn
    from torch.nn import functional as F

    from pytest_trainsafe.fixtures.deepspeed.engine import start

    deepspeed = start(ctx)
    torch.manual_seed(ctx.seed)
    model = nn.Sequential(
        nn.Conv2d(1, channels, 3),
        nn.BatchNorm2d(channels),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(36 * channels, 2),
    )
    config = {
        "train_micro_batch_size_per_gpu": 12,
        "optimizer": {"type": "Adam", "params": {"lr": 3e-3, "torch_adam": True}},
        "scheduler": {
            "type": "WarmupLR",
            "params": {"warmup_min_lr": 1e-3, "warmup_max_lr": 3e-3, "warmup_num_steps": 4},
        },
        "zero_optimization": {"stage": stage},
    }
    engine, *_ = deepspeed.initialize(
        model=model, model_parameters=model.parameters(), config=config
    )
    ctx.watch(engine, level="step")
    data = torch.Generator().manual_seed(31 + ctx.seed + 7 * ctx.rank)
    outcome = Outcome()
    for _ in range(steps):
        kinds = torch.randint(2, (12,), generator=data)
        pictures = torch.zeros(12, 1, 8, 8)
        pictures[:, :, 2:6, 2:6] = 1.0
        pictures[kinds == 1, :, 3:5, 3:5] = 0.0
        noisy = pictures + 0.3 * torch.randn(12, 1, 8, 8, generator=data)
        with ctx.step():
            loss = F.cross_entropy(engine(noisy), kinds)
            engine.backward(loss)
            engine.step()
        outcome.losses.append(loss.item())
    return outcome
