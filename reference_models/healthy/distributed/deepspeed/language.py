"""DeepSpeed that counts the micro-batches: a recurrent language model, AdamW and clipping."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pytest_trainsafe.reference_models.training.outcome import Outcome

if TYPE_CHECKING:
    import torch

    from pytest_trainsafe.record.context import Context


def train(
    ctx: Context,
    steps: int = 4,
    accumulate: int = 2,
    width: int = 16,
    stage: int = 1,
    narrow: bool = False,
) -> Outcome:
    """Predict the next token; `narrow` trains in bfloat16."""
    import torch
    from torch import nn
    from torch.nn import functional as F

    from pytest_trainsafe.fixtures.deepspeed.engine import start

    class Model(nn.Module):
        """Predicts each token from those before it."""

        def __init__(self) -> None:
            super().__init__()
            self.enter = nn.Embedding(15, width)
            self.mix = nn.GRU(width, width, batch_first=True)
            self.leave = nn.Linear(width, 15)

        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            """The mean loss of the tokens."""
            scores = self.leave(self.mix(self.enter(tokens[:, :-1]))[0])
            return F.cross_entropy(scores.flatten(0, 1).float(), tokens[:, 1:].flatten())

    deepspeed = start(ctx)
    torch.manual_seed(ctx.seed)
    config: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": 6,
        "gradient_accumulation_steps": accumulate,
        "gradient_clipping": 0.5,
        "optimizer": {
            "type": "AdamW",
            "params": {"lr": 1e-2, "weight_decay": 0.1, "torch_adam": True},
        },
        "zero_optimization": {"stage": stage},
        "bf16": {"enabled": narrow},
    }
    model = Model()
    engine, *_ = deepspeed.initialize(
        model=model, model_parameters=model.parameters(), config=config
    )
    ctx.watch(engine, level="step")
    data = torch.Generator().manual_seed(100 * ctx.seed + ctx.rank)
    outcome = Outcome()
    for _ in range(steps):
        total = 0.0
        with ctx.step():
            for _ in range(accumulate):
                first = torch.randint(15, (6, 1), generator=data)
                loss = engine((first + 4 * torch.arange(9)) % 15)
                engine.backward(loss)
                engine.step()
                total += loss.item() / accumulate
        outcome.losses.append(total)
    return outcome
