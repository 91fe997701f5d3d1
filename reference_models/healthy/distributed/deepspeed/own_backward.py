"""A denoiser trained with DeepSpeed and Adam.

The program's loop, not DeepSpeed's engine, calls torch's backward and counts the micro-batches.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_trainsafe.reference_models.training.outcome import Outcome

if TYPE_CHECKING:
    from pytest_trainsafe.record.context import Context


def train(ctx: Context, steps: int = 4, parts: int = 2, width: int = 14, stage: int = 1) -> Outcome:
    """Remove noise from waves.  The engine reduces and updates in each call of `step`.

    DeepSpeed supports this with ZeRO only, that is from `stage` 1 on.
    """
    import torch
    from torch import nn

    from pytest_trainsafe.fixtures.deepspeed.engine import start

    deepspeed = start(ctx)
    torch.manual_seed(ctx.seed)
    model = nn.Sequential(nn.Linear(12, width), nn.SiLU(), nn.Linear(width, 12))
    engine, *_ = deepspeed.initialize(
        model=model,
        model_parameters=model.parameters(),
        config={
            "train_micro_batch_size_per_gpu": 8,
            "managed_gradient_accumulation": False,
            "gradient_clipping": 1.0,
            "optimizer": {"type": "Adam", "params": {"lr": 1e-2, "torch_adam": True}},
            "zero_optimization": {"stage": stage},
        },
    )
    ctx.watch(engine, level="step")
    data = torch.Generator().manual_seed(67 + ctx.seed + 5 * ctx.rank)
    outcome = Outcome()
    for _ in range(steps):
        total = 0.0
        with ctx.step():
            for _ in range(parts):
                phase = 6.28 * torch.rand(8, 1, generator=data)
                waves = (torch.arange(12) / 2 + phase).sin()
                noisy = waves + 0.2 * torch.randn(8, 12, generator=data)
                loss = (engine(noisy) - waves).square().mean() / parts
                engine.scale(loss).backward()
                total += loss.item()
            engine.step()
        outcome.losses.append(total)
    return outcome
