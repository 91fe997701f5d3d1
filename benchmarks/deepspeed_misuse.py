"""A loop around DeepSpeed's engine that may use it wrongly.  Runs in the ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytest_trainsafe.record.context import Context

#: What a loop may do wrongly, and what that is in words.
MISUSES = {
    "no_step": "never calls engine.step",
    "step_twice": "calls engine.step twice after each backward",
    "step_first": "calls engine.step before the backward",
    "beside": "steps an optimizer of its own after each micro-batch, beside the engine",
    "rates": "sets another learning rate on one rank",
    "frozen": "freezes a parameter on one rank",
    "rewrite": "writes to a weight on one rank, after the second step",
    "stale": "replaces a layer after the optimizer was made",
    "nan": "trains on a loss that is not a number from the third step on",
}


def train(ctx: Context, misuse: str = "", stage: int = 0, steps: int = 4) -> None:
    """Train a classifier of two micro-batches a step, with the misuse if one is given."""
    import torch
    from torch import nn
    from torch.nn import functional as F

    from pytest_trainsafe.fixtures.deepspeed.engine import start

    deepspeed = start(ctx)
    torch.manual_seed(ctx.seed)
    odd = ctx.rank == 1
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    if misuse == "frozen" and odd:
        model[2].bias.requires_grad_(False)
    held = [each for each in model.parameters() if each.requires_grad]
    rate = 2e-2 if misuse == "rates" and odd else 1e-2
    optimizer = torch.optim.Adam(held, lr=rate)
    if misuse == "stale":
        model[2] = nn.Linear(8, 3)
    engine, *_ = deepspeed.initialize(
        model=model,
        optimizer=optimizer,
        config={
            "train_micro_batch_size_per_gpu": 8,
            "gradient_accumulation_steps": 2,
            "zero_optimization": {"stage": stage},
            "zero_allow_untested_optimizer": True,
        },
    )
    ctx.watch(engine, level="step")
    own = torch.optim.SGD(held, lr=1e-2) if misuse == "beside" else None
    data = torch.Generator().manual_seed(3 + ctx.seed + ctx.rank)
    for step in range(steps):
        with ctx.step():
            for _ in range(2):
                inputs = torch.randn(8, 6, generator=data)
                if misuse == "step_first":
                    engine.step()
                loss = F.cross_entropy(engine(inputs), inputs[:, :3].argmax(dim=1))
                if misuse == "nan" and step > 1:
                    loss = loss * float("nan")
                engine.backward(loss)
                if own is not None:
                    own.step()
                if misuse not in ("no_step", "step_first"):
                    engine.step()
                if misuse == "step_twice":
                    engine.step()
        if misuse == "rewrite" and odd and step == 1:
            with torch.no_grad():
                model[0].weight.mul_(0.9)  # type: ignore[operator]
