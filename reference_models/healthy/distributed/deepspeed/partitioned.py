"""DeepSpeed with ZeRO-3, which partitions the parameters: trains a perceptron.

The learning rate's schedule is given to DeepSpeed as a function that makes it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_trainsafe.reference_models.training.outcome import Outcome

if TYPE_CHECKING:
    from pytest_trainsafe.record.context import Context


def train(
    ctx: Context, steps: int = 5, width: int = 12, stage: int = 3, clip: float = 1.0
) -> Outcome:
    """Fit a sine; two parameter groups, of which one has no weight decay."""
    import torch
    from torch import nn

    from pytest_trainsafe.fixtures.deepspeed.engine import start

    deepspeed = start(ctx)
    torch.manual_seed(ctx.seed)
    model = nn.Sequential(nn.Linear(1, width), nn.GELU(), nn.Linear(width, width), nn.GELU())
    model.append(nn.Linear(width, 1))
    matrices = [each for each in model.parameters() if each.ndim > 1]
    vectors = [each for each in model.parameters() if each.ndim == 1]
    optimizer = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": 0.01}, {"params": vectors, "weight_decay": 0.0}],
        lr=2e-2,
    )
    engine, *_ = deepspeed.initialize(
        model=model,
        optimizer=optimizer,
        lr_scheduler=lambda made: torch.optim.lr_scheduler.LambdaLR(
            made, lambda count: 1 / (1 + 0.1 * count)
        ),
        config={
            "train_micro_batch_size_per_gpu": 16,
            "gradient_clipping": clip,
            "zero_optimization": {"stage": stage},
            "zero_allow_untested_optimizer": True,
        },
    )
    ctx.watch(engine, level="step")
    data = torch.Generator().manual_seed(2 + ctx.seed + 13 * ctx.rank)
    outcome = Outcome()
    for _ in range(steps):
        inputs = torch.rand(16, 1, generator=data) * 6 - 3
        with ctx.step():
            loss = (engine(inputs) - inputs.sin()).square().mean()
            engine.backward(loss)
            engine.step()
            engine.get_global_grad_norm()
        outcome.losses.append(loss.item())
    return outcome
