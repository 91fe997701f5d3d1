"""DeepSpeed's pipeline: layers in two stages, trained by `train_batch`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pytest_trainsafe.reference_models.training.outcome import Outcome

if TYPE_CHECKING:
    import torch

    from pytest_trainsafe.record.context import Context


def train(ctx: Context, steps: int = 4, parts: int = 2, width: int = 12, stage: int = 0) -> Outcome:
    """Separate two moons; the stages have two layers each."""
    import torch
    from torch import nn
    from torch.nn import functional as F

    from pytest_trainsafe.fixtures.deepspeed.engine import start

    deepspeed = start(ctx)
    torch.manual_seed(ctx.seed)
    layers = [nn.Linear(2, width), nn.ReLU(), nn.LayerNorm(width), nn.Linear(width, 2)]
    module = deepspeed.pipe.PipelineModule(
        layers=layers, num_stages=2, loss_fn=F.cross_entropy, partition_method="uniform"
    )
    engine, *_ = deepspeed.initialize(
        model=module,
        model_parameters=module.parameters(),
        config={
            "train_micro_batch_size_per_gpu": 8,
            "gradient_accumulation_steps": parts,
            "optimizer": {"type": "Adam", "params": {"lr": 1e-2, "torch_adam": True}},
            "zero_optimization": {"stage": stage},
        },
    )
    ctx.watch(engine, level="step")
    data = torch.Generator().manual_seed(17 + ctx.seed)
    outcome = Outcome()

    def moons() -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        while True:
            kinds = torch.randint(2, (8,), generator=data)
            angle = 3.14 * torch.rand(8, generator=data)
            turn = 1 - 2.0 * kinds
            yield torch.stack([angle.cos() + kinds, turn * angle.sin() + kinds / 2], 1), kinds

    batches = moons()
    for _ in range(steps):
        with ctx.step():
            loss = engine.train_batch(batches)
        outcome.losses.append(loss.item())
    return outcome
