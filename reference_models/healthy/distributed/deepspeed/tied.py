"""DeepSpeed's pipeline of a language model whose first and last stage share the embedding."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pytest_trainsafe.reference_models.training.outcome import Outcome

if TYPE_CHECKING:
    import torch

    from pytest_trainsafe.record.context import Context


def train(
    ctx: Context, steps: int = 4, parts: int = 3, width: int = 8, clip: float = 1.0
) -> Outcome:
    """Continue sequences that rise by one; every second step is followed by an evaluation."""
    import torch
    from torch import nn
    from torch.nn import functional as F

    from pytest_trainsafe.fixtures.deepspeed.engine import start

    deepspeed = start(ctx)
    torch.manual_seed(ctx.seed)
    pipe = deepspeed.pipe

    def scores(module: Any, hidden: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = hidden @ module.weight.T
        return found

    module = pipe.PipelineModule(
        layers=[
            pipe.TiedLayerSpec("embedding", nn.Embedding, 11, width),
            pipe.LayerSpec(nn.LayerNorm, width),
            pipe.LayerSpec(nn.Linear, width, width),
            pipe.LayerSpec(nn.Tanh),
            pipe.TiedLayerSpec("embedding", nn.Embedding, 11, width, forward_fn=scores),
        ],
        num_stages=ctx.point.size("pp"),
        loss_fn=lambda found, wanted: F.cross_entropy(found.flatten(0, 1), wanted.flatten()),
        partition_method="uniform",
    )
    engine, *_ = deepspeed.initialize(
        model=module,
        model_parameters=[each for each in module.parameters() if each.requires_grad],
        config={
            "train_micro_batch_size_per_gpu": 4,
            "gradient_accumulation_steps": parts,
            "gradient_clipping": clip,
            "optimizer": {"type": "AdamW", "params": {"lr": 2e-2, "torch_adam": True}},
        },
    )
    ctx.watch(engine, level="step")

    def sequences(seed: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        data = torch.Generator().manual_seed(seed)
        while True:
            tokens = (torch.randint(11, (4, 1), generator=data) + torch.arange(7)) % 11
            yield tokens[:, :-1], tokens[:, 1:]

    batches, others = sequences(3 + ctx.seed), sequences(1000 + ctx.seed)
    outcome = Outcome()
    for step in range(steps):
        with ctx.step():
            loss = engine.train_batch(batches)
        outcome.losses.append(loss.item())
        if step % 2 == 1:
            engine.eval_batch(others)
    return outcome
