"""A checkpointed tower with mixup and soft labels; the last window of micro-batches is shorter."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint_sequential
from torch.utils.data import DataLoader, TensorDataset

ACCUMULATE = 4


def mixup(x: Tensor, y: Tensor, alpha: float) -> tuple[Tensor, Tensor, Tensor, float]:
    share = float(torch.distributions.Beta(alpha, alpha).sample())
    order = torch.randperm(len(x))
    return share * x + (1 - share) * x[order], y, y[order], share


def floor(width: int) -> nn.Module:
    return nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Dropout(0.1))


def train(seed: int = 0, size: int = 20) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    x = torch.randn(174, 7)
    y = (x @ torch.randn(7, 4)).argmax(1)
    loader = DataLoader(TensorDataset(x, y), batch_size=12, shuffle=True)
    entry, top = nn.Linear(7, size), nn.Linear(size, 4)
    tower = nn.Sequential(*(floor(size) for _ in range(4)))
    model = nn.ModuleList([entry, tower, top])
    criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
    optimizer = torch.optim.NAdam(model.parameters(), lr=1e-2)
    losses = []
    for _epoch in range(6):
        model.train()
        batches = list(loader)
        for start in range(0, len(batches), ACCUMULATE):
            window = batches[start : start + ACCUMULATE]
            rows = sum(len(b[1]) for b in window)
            total = 0.0
            optimizer.zero_grad(set_to_none=True)
            for bx, by in window:
                mixed, one, other, share = mixup(bx, by, 0.4)
                h = checkpoint_sequential(tower, 2, entry(mixed), use_reentrant=False)
                scores = top(h)
                loss = share * criterion(scores, one) + (1 - share) * criterion(scores, other)
                (loss * len(by) / rows).backward()
                total += loss.item() * len(by) / rows
            optimizer.step()
            losses.append(total)
    return {"loss": losses}
