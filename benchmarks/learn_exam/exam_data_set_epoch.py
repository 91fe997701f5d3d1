"""`set_epoch` is not called, so every epoch has the order of the first."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


def train(healthy: bool = True, seed: int = 0, size: int = 16) -> dict[str, list[float]]:
    if not dist.is_initialized():
        dist.init_process_group("gloo")
    torch.manual_seed(seed)
    features = torch.randn(64, size)
    targets = features @ torch.randn(size, 1)
    dataset = TensorDataset(features, targets, torch.arange(64))
    sampler: DistributedSampler[object] = DistributedSampler(dataset, shuffle=True, seed=seed)
    loader = DataLoader(dataset, batch_size=8, sampler=sampler)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(size, 24), nn.Tanh(), nn.Linear(24, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    losses, order = [], []
    for epoch in range(4):
        if healthy:
            sampler.set_epoch(epoch)
        for inputs, wanted, index in loader:
            loss = nn.functional.mse_loss(model(inputs), wanted)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            order.append(float(index[0]))
    return {"loss": losses, "order": order}
