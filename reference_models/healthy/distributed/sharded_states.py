"""Replicas whose optimizer states are divided among the ranks: ZeroRedundancyOptimizer and DDP."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_trainsafe.reference_models.training.outcome import Outcome

if TYPE_CHECKING:
    from pytest_trainsafe.record.context import Context


def train(ctx: Context, steps: int = 5, width: int = 16, weight_decay: float = 0.01) -> Outcome:
    """Classify sums of sequences with an LSTM."""
    import torch
    from torch import Tensor, nn
    from torch.distributed.optim import ZeroRedundancyOptimizer
    from torch.nn import functional as F
    from torch.nn.parallel import DistributedDataParallel

    class Adder(nn.Module):
        """An LSTM and a linear layer on its last output."""

        def __init__(self) -> None:
            super().__init__()
            self.lstm, self.head = nn.LSTM(1, width, batch_first=True), nn.Linear(width, 2)

        def forward(self, x: Tensor) -> Tensor:
            scores: Tensor = self.head(self.lstm(x)[0][:, -1])
            return scores

    torch.manual_seed(ctx.seed)
    group = ctx.group("dp")
    replica = DistributedDataParallel(Adder(), process_group=group)
    optimizer = ZeroRedundancyOptimizer(
        replica.parameters(),
        torch.optim.AdamW,
        process_group=group,
        lr=1e-2,
        weight_decay=weight_decay,
    )
    ctx.watch(replica, optimizer, level="step")
    data = torch.Generator().manual_seed(17 * ctx.rank + ctx.seed)
    outcome = Outcome()
    for _ in range(steps):
        with ctx.step():
            inputs = torch.randn(20, 5, 1, generator=data)
            loss = F.cross_entropy(replica(inputs), (inputs.sum(dim=(1, 2)) > 0).long())
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            outcome.losses.append(loss.item())
    return outcome
