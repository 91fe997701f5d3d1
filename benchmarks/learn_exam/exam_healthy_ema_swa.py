"""Weights of the last epochs are averaged, and batch norms estimated again for the average."""

from __future__ import annotations

import torch
from torch import nn
from torch.optim.swa_utils import SWALR, AveragedModel, update_bn
from torch.utils.data import DataLoader, TensorDataset


def train(seed: int = 0, size: int = 16) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    x = torch.randn(96, 9)
    y = (x[:, 0] * x[:, 1] > 0).long()
    loader = DataLoader(TensorDataset(x, y), batch_size=24, shuffle=True)
    model = nn.Sequential(nn.Linear(9, size), nn.BatchNorm1d(size), nn.ReLU(), nn.Linear(size, 2))
    average = AveragedModel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    cosine = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 8)
    constant = SWALR(optimizer, swa_lr=0.05, anneal_epochs=2)
    losses = []
    for epoch in range(8):
        model.train()
        for rows, labels in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(rows), labels)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        if epoch >= 5:
            average.update_parameters(model)
            constant.step()
        else:
            cosine.step()
    update_bn(loader, average)
    average.eval()
    with torch.no_grad():
        final = nn.functional.cross_entropy(average(x), y).item()
    return {"loss": losses, "final": [final]}
