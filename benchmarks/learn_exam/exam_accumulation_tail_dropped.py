"""The micro-batches after the last full window are cleared at the next epoch without a step."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def train(healthy: bool = True, seed: int = 0, size: int = 16) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    draft = nn.Sequential(nn.Linear(size, size), nn.SiLU(), nn.Linear(size, size))
    optimizer = torch.optim.AdamW(draft.parameters(), lr=1e-2)
    hidden = torch.randn(56, size)
    dataset = TensorDataset(hidden, hidden.cumsum(1) / 4)
    loader = DataLoader(
        dataset, batch_size=8, shuffle=True, generator=torch.Generator().manual_seed(seed)
    )
    window = 4
    losses, steps = [], []
    done = 0
    for _ in range(4):
        optimizer.zero_grad()
        pending = 0
        for inputs, targets in loader:
            loss = nn.functional.smooth_l1_loss(draft(inputs), targets)
            (loss / window).backward()
            pending += 1
            losses.append(loss.item())
            if pending == window:
                optimizer.step()
                optimizer.zero_grad()
                pending = 0
                done += 1
        if healthy and pending:
            for parameter in draft.parameters():
                assert parameter.grad is not None
                parameter.grad.mul_(window / pending)
            optimizer.step()
            done += 1
        steps.append(float(done))
    return {"loss": losses, "steps": steps}
