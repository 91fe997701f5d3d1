"""DeepSpeed's residual experts in a model of sequences: Adam and WarmupLR from a rate of zero."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_trainsafe.reference_models.training.outcome import Outcome

if TYPE_CHECKING:
    import torch

    from pytest_trainsafe.record.context import Context


def train(ctx: Context, steps: int = 4, accumulate: int = 2, width: int = 8) -> Outcome:
    """Repeat the token before the last one; two of four experts are on each rank."""
    import torch
    from torch import nn
    from torch.nn import functional as F

    from pytest_trainsafe.fixtures.deepspeed.engine import start

    deepspeed = start(ctx)
    from deepspeed.moe.layer import MoE

    class Model(nn.Module):
        """A convolution over the tokens, experts, and scores."""

        def __init__(self) -> None:
            super().__init__()
            self.enter = nn.Embedding(9, width)
            self.mix = nn.Conv1d(width, width, 3)
            self.experts = MoE(
                width,
                nn.Linear(width, width),
                num_experts=4,
                ep_size=2,
                k=2,
                use_residual=True,
                capacity_factor=2.0,
            )
            self.leave = nn.Linear(width, 9)

        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            """The scores of each token from the third on."""
            hidden = self.mix(self.enter(tokens).mT).mT
            found: torch.Tensor = self.leave(self.experts(hidden)[0])
            return found

    torch.manual_seed(7 + ctx.seed)  # on all ranks
    model = Model()
    engine, *_ = deepspeed.initialize(
        model=model,
        model_parameters=model.parameters(),
        config={
            "train_micro_batch_size_per_gpu": 6,
            "gradient_accumulation_steps": accumulate,
            "optimizer": {"type": "Adam", "params": {"lr": 1e-2, "torch_adam": True}},
            # Warms up from a rate of zero.
            "scheduler": {
                "type": "WarmupLR",
                "params": {"warmup_max_lr": 1e-2, "warmup_num_steps": 3, "warmup_type": "linear"},
            },
        },
    )
    ctx.watch(engine, level="step")
    data = torch.Generator().manual_seed(29 + ctx.seed + 2 * ctx.rank)
    outcome = Outcome()
    for _ in range(steps):
        total = 0.0
        with ctx.step():
            for _ in range(accumulate):
                tokens = torch.randint(9, (6, 10), generator=data)
                scores = engine(tokens).flatten(0, 1)
                loss = F.cross_entropy(scores, tokens[:, 1:-1].flatten())
                engine.backward(loss)
                engine.step()
                total += loss.item() / accumulate
        outcome.losses.append(total)
    return outcome
