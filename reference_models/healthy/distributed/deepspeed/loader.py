"""DeepSpeed that makes the data loader: several epochs over a data set of labelled points."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_trainsafe.reference_models.training.outcome import Outcome

if TYPE_CHECKING:
    from pytest_trainsafe.record.context import Context


def train(
    ctx: Context, epochs: int = 2, width: int = 10, stage: int = 1, cosine: bool = False
) -> Outcome:
    """Classify points by the sign of their product; one parameter is frozen."""
    import torch
    from torch import nn
    from torch.nn import functional as F
    from torch.utils.data import TensorDataset

    from pytest_trainsafe.fixtures.deepspeed.engine import start

    deepspeed = start(ctx)
    torch.manual_seed(ctx.seed)
    model = nn.Sequential(nn.Linear(2, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())
    model.append(nn.Linear(width, 2))
    model[0].bias.requires_grad_(False)
    points = torch.randn(48, 2, generator=torch.Generator().manual_seed(ctx.seed))
    labels = (points.prod(dim=1) > 0).long()
    warm_up = {"warmup_num_steps": 3, "total_num_steps": 12}
    rates = {} if cosine else {"warmup_min_lr": 1e-3, "warmup_max_lr": 1e-2}
    engine, _, batches, _ = deepspeed.initialize(
        model=model,
        model_parameters=[each for each in model.parameters() if each.requires_grad],
        training_data=TensorDataset(points, labels),
        config={
            "train_micro_batch_size_per_gpu": 8,
            "optimizer": {"type": "AdamW", "params": {"lr": 1e-2, "torch_adam": True}},
            "scheduler": {
                "type": "WarmupCosineLR" if cosine else "WarmupDecayLR",
                "params": {**warm_up, **rates},
            },
            "zero_optimization": {"stage": stage},
        },
    )
    ctx.watch(engine, level="step")
    outcome = Outcome()
    for _ in range(epochs):
        for inputs, wanted in batches:
            with ctx.step():
                loss = F.cross_entropy(engine(inputs), wanted)
                engine.backward(loss)
                engine.step()
            outcome.losses.append(loss.item())
    return outcome
