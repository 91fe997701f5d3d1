"""DistributedDataParallel with a distributed sampler: SGD with momentum, a step schedule."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_trainsafe.reference_models.training.outcome import Outcome

if TYPE_CHECKING:
    from pytest_trainsafe.record.context import Context


def train(
    ctx: Context, steps: int = 6, batch: int = 8, lr: float = 0.1, width: int = 24
) -> Outcome:
    """Two epochs of `steps` / 2 steps; every rank sees its half of the shuffled data."""
    import torch
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel
    from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

    torch.manual_seed(ctx.seed)
    count = batch * ctx.world_size * (steps // 2)
    features = torch.randn(count, 20)
    dataset = TensorDataset(features, features[:, :5].argmax(dim=1))
    sampler: DistributedSampler[object] = DistributedSampler(
        dataset, num_replicas=ctx.world_size, rank=ctx.rank, shuffle=True
    )
    loader = DataLoader(dataset, batch_size=batch, sampler=sampler)
    model = nn.Sequential(nn.Linear(20, width), nn.ReLU(), nn.Linear(width, 5))
    replica = DistributedDataParallel(model, process_group=ctx.group("dp"))
    optimizer = torch.optim.SGD(replica.parameters(), lr=lr, momentum=0.9)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=steps // 2, gamma=0.5)
    criterion = nn.CrossEntropyLoss()
    ctx.watch(replica, optimizer, level="step")
    outcome = Outcome()
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for inputs, labels in loader:
            with ctx.step():
                optimizer.zero_grad()
                loss = criterion(replica(inputs), labels)
                loss.backward()
                optimizer.step()
                schedule.step()
                outcome.losses.append(loss.item())
    return outcome
