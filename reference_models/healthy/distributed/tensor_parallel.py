"""A tensor-parallel regression in float32: AdamW, replicated norms, no clipping."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_trainsafe.reference_models.training.outcome import Outcome

if TYPE_CHECKING:
    from pytest_trainsafe.record.context import Context


def train(
    ctx: Context, steps: int = 5, layers: int = 2, width: int = 12, lr: float = 5e-3
) -> Outcome:
    """Train on the same data on every tp rank; each holds its shard of the perceptrons.

    Every rank reads the same batches from a loader of its own.
    """
    import torch
    from torch import nn
    from torch.nn import functional as F
    from torch.utils.data import DataLoader, TensorDataset

    from pytest_trainsafe.reference_models.toolkit.sharded import ShardedMLP, replicated

    torch.manual_seed(ctx.seed)
    group = ctx.group("tp")
    blocks: list[nn.Module] = []
    for _ in range(layers):
        blocks += [replicated(nn.LayerNorm(width)), ShardedMLP(width, 2 * width, group)]
    model = nn.Sequential(*blocks, replicated(nn.Linear(width, 1)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
    ctx.watch(model, optimizer, level="step")
    data = TensorDataset(torch.randn(20 * steps, width))
    outcome = Outcome()
    for (inputs,) in DataLoader(data, batch_size=20):
        with ctx.step():
            loss = F.mse_loss(model(inputs), inputs.square().mean(dim=1, keepdim=True))
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            outcome.losses.append(loss.item())
    return outcome
