"""A denoising autoencoder, trained and evaluated under float16 autocast, with a gradient scaler."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset


def train(
    *,
    seed: int = 0,
    steps: int = 8,
    hidden: int = 24,
    noise: float = 0.2,
    batch: int = 16,
    enabled: bool = True,
) -> list[float]:
    """Learn to restore noisy points of a curve, in two epochs of `steps` / 2 steps.

    Each epoch ends with an evaluation.  With `enabled`=False there is neither autocast nor scaling.
    """
    torch.manual_seed(seed)
    model = nn.Sequential(
        nn.Linear(6, hidden), nn.Tanh(), nn.Linear(hidden, hidden), nn.Tanh(), nn.Linear(hidden, 6)
    )
    angle = 6.3 * torch.rand(batch * (steps // 2), 1)
    curve = torch.cat([(angle * k).cos() for k in range(1, 7)], dim=1)
    loader = DataLoader(TensorDataset(curve), batch_size=batch, shuffle=True)
    optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-2)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, enabled=enabled)
    losses = []
    for _ in range(2):
        model.train()
        for (points,) in loader:
            optimizer.zero_grad(set_to_none=True)
            with torch.autocast("cpu", dtype=torch.float16, enabled=enabled):
                restored = model(points + noise * torch.randn_like(points))
                loss = F.mse_loss(restored.float(), points)
            scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
            scaler.step(optimizer)
            scaler.update()
            losses.append(float(loss.detach()))
        model.eval()
        with torch.no_grad(), torch.autocast("cpu", dtype=torch.float16, enabled=enabled):
            model(curve)
    return losses
