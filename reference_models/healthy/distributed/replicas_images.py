"""A replicated CNN with batch normalisation, whose buffers DDP broadcasts, and a sampler."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_trainsafe.reference_models.training.outcome import Outcome

if TYPE_CHECKING:
    from pytest_trainsafe.record.context import Context


def train(ctx: Context, steps: int = 5, channels: int = 6, lr: float = 3e-3) -> Outcome:
    """Classify filled and hollow squares."""
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.nn import functional as F
    from torch.nn.parallel import DistributedDataParallel
    from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

    torch.manual_seed(ctx.seed)
    model = nn.Sequential(
        nn.Conv2d(1, channels, 3),
        nn.BatchNorm2d(channels),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(36 * channels, 2),
    )
    replica = DistributedDataParallel(model, process_group=ctx.group("dp"), bucket_cap_mb=1)
    optimizer = torch.optim.Adam(replica.parameters(), lr=lr)
    ctx.watch(replica, optimizer, level="step")
    count = 12 * steps * ctx.world_size
    labels = torch.randint(2, (count,))
    pictures = torch.zeros(count, 1, 8, 8)
    pictures[:, :, 2:6, 2:6] = 1.0
    pictures[labels == 1, :, 3:5, 3:5] = 0.0
    data = TensorDataset(pictures + 0.3 * torch.randn(count, 1, 8, 8), labels)
    sampler: DistributedSampler[object] = DistributedSampler(data, ctx.world_size, ctx.rank)
    outcome = Outcome()
    for step, (noisy, kinds) in enumerate(DataLoader(data, batch_size=12, sampler=sampler)):
        with ctx.step():
            model.train()
            optimizer.zero_grad()
            loss = F.cross_entropy(replica(noisy), kinds)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            outcome.losses.append(loss.item())
        if step == steps - 1 and ctx.rank == 0:
            model.eval()
            with torch.no_grad():
                model(noisy)
    dist.barrier(group=ctx.group("dp"))
    return outcome
