"""A distributed sampler with set_epoch and an unshuffled loader for validation, on two ranks."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Subset, TensorDataset
from torch.utils.data.distributed import DistributedSampler


def train(seed: int = 0, size: int = 16) -> dict[str, list[float]]:
    if not dist.is_initialized():
        dist.init_process_group("gloo")
    torch.manual_seed(seed)
    x = torch.randn(60, 7)
    whole = TensorDataset(x, (x[:, 0] > x[:, 1]).long())
    fit, held = Subset(whole, range(48)), Subset(whole, range(48, 60))
    sampler: DistributedSampler[object] = DistributedSampler(fit, drop_last=True)
    loader = DataLoader(fit, 6, sampler=sampler)
    quiet = DataLoader(held, 6, sampler=DistributedSampler(held, shuffle=False))
    model = DistributedDataParallel(
        nn.Sequential(nn.Linear(7, size), nn.ReLU(), nn.Linear(size, 2))
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses, accuracy = [], []
    for epoch in range(4):
        sampler.set_epoch(epoch)
        model.train()
        for rows, labels in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(rows), labels)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        model.eval()
        right = torch.zeros(())
        with torch.no_grad():
            for rows, labels in quiet:
                right += (model(rows).argmax(1) == labels).sum()
        dist.all_reduce(right)
        accuracy.append(right.item() / 12)
    return {"loss": losses, "accuracy": accuracy}
