"""Sorts leaves; the weights of the last epochs are averaged, and the average is what is kept."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import SWALR, AveragedModel, update_bn
from torch.utils.data import DataLoader, TensorDataset

EPOCHS, SWA_START = 9, 5


def leaves(count: int, prototypes: Tensor) -> TensorDataset:
    kind = torch.randint(0, len(prototypes), (count,))
    return TensorDataset(4 * prototypes[kind] + torch.randn(count, 12) + 2, kind)


def train(healthy: bool = True, seed: int = 0, size: int = 20) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    prototypes = torch.randn(5, 12) / 3
    train_set, test_set = leaves(160, prototypes), leaves(64, prototypes)
    loader = DataLoader(train_set, batch_size=32, shuffle=True)
    model = nn.Sequential(
        nn.Linear(12, size), nn.BatchNorm1d(size), nn.ReLU(),
        nn.Linear(size, size), nn.BatchNorm1d(size), nn.ReLU(), nn.Linear(size, 5),
    )  # fmt: skip
    averaged = AveragedModel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    cosine = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=SWA_START)
    constant = SWALR(optimizer, swa_lr=0.05, anneal_epochs=1)
    losses = []
    for epoch in range(EPOCHS):
        model.train()
        for x, y in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        if epoch >= SWA_START:
            averaged.update_parameters(model)
            constant.step()
        else:
            cosine.step()
    if healthy:
        update_bn(loader, averaged)
    averaged.eval()
    with torch.no_grad():
        x, y = test_set.tensors
        final = nn.functional.cross_entropy(averaged(x), y)
    return {"loss": losses, "averaged": [final.item()]}
