"""A tensor-parallel language model in bfloat16 with float32 masters; clipping over the tp group."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_trainsafe.reference_models.training.outcome import Outcome

if TYPE_CHECKING:
    from pytest_trainsafe.record.context import Context


def train(
    ctx: Context, steps: int = 4, width: int = 16, clip: float = 0.5, lr: float = 1e-2
) -> Outcome:
    """Learn a function of each token; embedding, norm and output layer are replicated."""
    import torch
    from torch import nn
    from torch.nn import functional as F

    from pytest_trainsafe.reference_models.toolkit.mixed import MixedOptimizer
    from pytest_trainsafe.reference_models.toolkit.sharded import ShardedMLP, replicated

    torch.manual_seed(ctx.seed)
    group = ctx.group("tp")
    model = nn.Sequential(
        replicated(nn.Embedding(16, width)),
        ShardedMLP(width, 4 * width, group),
        replicated(nn.LayerNorm(width)),
        replicated(nn.Linear(width, 16)),
    ).to(torch.bfloat16)
    optimizer = MixedOptimizer(model.parameters(), lr=lr, clip=clip, group=group)
    ctx.watch(model, optimizer.optimizer, level="step")
    outcome = Outcome()
    for _ in range(steps):
        with ctx.step():
            tokens = torch.randint(16, (8, 6))
            scores = model(tokens).float().flatten(0, 1)
            loss = F.cross_entropy(scores, ((tokens * 3) % 16).flatten())
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            optimizer.zero_grad()
            outcome.losses.append(loss.item())
    return outcome
