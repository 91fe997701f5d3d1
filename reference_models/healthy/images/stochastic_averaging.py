"""Stochastic weight averaging (Izmailov et al., 2018): an average of the last epochs' weights.

The statistics of the average's norms are computed by a pass over the data at the end.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.optim.swa_utils import SWALR, AveragedModel, update_bn
from torch.utils.data import DataLoader, TensorDataset


def train(
    *,
    seed: int = 0,
    steps: int = 6,
    channels: int = 6,
    swa_start: int = 3,
    swa_lr: float = 0.03,
) -> list[float]:
    """Classify blobs for `steps` epochs; average from the epoch `swa_start` on."""
    torch.manual_seed(seed)
    labels = torch.arange(36) % 3
    templates = torch.randn(3, 1, 8, 8)
    images = templates[labels] + 0.4 * torch.randn(36, 1, 8, 8)
    loader = DataLoader(TensorDataset(images, labels), batch_size=12, shuffle=True, drop_last=True)
    model = nn.Sequential(
        nn.Conv2d(1, channels, 3, stride=2, bias=False),
        nn.BatchNorm2d(channels),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(9 * channels, 3),
    )
    swa_model = AveragedModel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=max(1, swa_start))
    swa_scheduler = SWALR(optimizer, swa_lr=swa_lr, anneal_epochs=2)
    loss_fn = nn.CrossEntropyLoss()
    epoch_losses = []
    for epoch in range(steps):
        model.train()
        total = 0.0
        for input_, target in loader:
            optimizer.zero_grad()
            loss = loss_fn(model(input_), target)
            loss.backward()
            optimizer.step()
            total += loss.item() / len(loader)
        if epoch >= swa_start:
            swa_model.update_parameters(model)
            swa_scheduler.step()
        else:
            scheduler.step()
        epoch_losses.append(total)
    update_bn(loader, swa_model)
    swa_model.eval()
    with torch.no_grad():
        loss_fn(swa_model(images), labels)
    return epoch_losses
