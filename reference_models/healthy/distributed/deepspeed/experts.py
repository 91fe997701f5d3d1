"""DeepSpeed's mixture of experts, which are on different ranks and begin with equal weights."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pytest_trainsafe.reference_models.training.outcome import Outcome

if TYPE_CHECKING:
    import torch

    from pytest_trainsafe.record.context import Context


def train(
    ctx: Context, steps: int = 4, width: int = 8, stage: int = 0, drop_tokens: bool = False
) -> Outcome:
    """Classify points by their nearest centre; the loss includes that of the gate."""
    import torch
    from torch import nn
    from torch.nn import functional as F

    from pytest_trainsafe.fixtures.deepspeed.engine import start

    deepspeed = start(ctx)
    from deepspeed.moe.layer import MoE
    from deepspeed.moe.utils import split_params_into_different_moe_groups_for_optimizer as split

    class Model(nn.Module):
        """Two layers with experts in between."""

        def __init__(self) -> None:
            super().__init__()
            self.enter = nn.Linear(2, width)
            expert = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width))
            self.experts = MoE(
                width,
                expert,
                num_experts=2,
                ep_size=2,
                k=1,
                min_capacity=0,
                drop_tokens=drop_tokens,
                use_rts=False,
            )
            self.leave = nn.Linear(width, 3)

        def forward(self, points: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            """The scores of the classes, and the gate's loss."""
            hidden, gate, _ = self.experts(self.enter(points))
            return self.leave(hidden), gate

    torch.manual_seed(ctx.seed)  # the same on all ranks, so experts begin with equal weights
    model = Model()
    groups: Any = {"params": list(model.parameters()), "name": "all"}
    optimizer = torch.optim.AdamW(split(groups), lr=1e-2)
    engine, *_ = deepspeed.initialize(
        model=model,
        optimizer=optimizer,
        # The first step has the rate zero, as with DeepSpeed's WarmupLR.
        lr_scheduler=torch.optim.lr_scheduler.LambdaLR(optimizer, lambda count: min(1, count / 2)),
        config={
            "train_micro_batch_size_per_gpu": 16,
            "zero_optimization": {"stage": stage},
            "zero_allow_untested_optimizer": True,
        },
    )
    ctx.watch(engine, level="step")
    centres = torch.randn(3, 2, generator=torch.Generator().manual_seed(ctx.seed))
    data = torch.Generator().manual_seed(23 + ctx.seed + 3 * ctx.rank)
    outcome = Outcome()
    for _ in range(steps):
        points = torch.randn(16, 2, generator=data)
        classes = torch.cdist(points, centres).argmin(dim=1)
        with ctx.step():
            scores, gate = engine(points)
            loss = F.cross_entropy(scores, classes) + 0.01 * gate
            engine.backward(loss)
            engine.step()
        outcome.losses.append(loss.item())
    return outcome
