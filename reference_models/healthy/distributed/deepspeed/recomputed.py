"""DeepSpeed with recomputation of attention, by the reentrant form of torch's checkpoint."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_trainsafe.reference_models.training.outcome import Outcome

if TYPE_CHECKING:
    import torch

    from pytest_trainsafe.record.context import Context


def train(ctx: Context, steps: int = 4, width: int = 8, stage: int = 1) -> Outcome:
    """Sort short sequences; what is recomputed has no parameters."""
    import torch
    from torch import nn
    from torch.nn import functional as F
    from torch.utils.checkpoint import checkpoint

    from pytest_trainsafe.fixtures.deepspeed.engine import start

    def mixed(hidden: torch.Tensor) -> torch.Tensor:
        return torch.softmax(hidden @ hidden.mT / width**0.5, -1) @ hidden

    class Model(nn.Module):
        """One layer of attention without projections, between two linear ones."""

        def __init__(self) -> None:
            super().__init__()
            self.enter = nn.Linear(1, width)
            self.leave = nn.Linear(2 * width, 1)

        def forward(self, numbers: torch.Tensor) -> torch.Tensor:
            """The mean error of the sorted sequences."""
            hidden = self.enter(numbers.unsqueeze(-1))
            seen = checkpoint(mixed, hidden, use_reentrant=True)
            found = self.leave(torch.cat([hidden, seen], -1)).squeeze(-1)
            return F.l1_loss(found, numbers.sort(dim=1).values)

    deepspeed = start(ctx)
    torch.manual_seed(ctx.seed)
    model = Model()
    engine, *_ = deepspeed.initialize(
        model=model,
        model_parameters=model.parameters(),
        config={
            "train_micro_batch_size_per_gpu": 6,
            "optimizer": {"type": "AdamW", "params": {"lr": 1e-2, "torch_adam": True}},
            "zero_optimization": {"stage": stage},
        },
    )
    ctx.watch(engine, level="step")
    data = torch.Generator().manual_seed(53 + ctx.seed + 9 * ctx.rank)
    outcome = Outcome()
    for _ in range(steps):
        with ctx.step():
            loss = engine(torch.rand(6, 5, generator=data))
            engine.backward(loss)
            engine.step()
        outcome.losses.append(loss.item())
    return outcome
