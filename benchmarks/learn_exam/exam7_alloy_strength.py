"""The strength of alloys, trained in two sessions, of which the second resumes the first.

Follows https://github.com/aiqm/torchani/issues/443.
"""

from __future__ import annotations

import io

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Subset, TensorDataset, random_split

METALS = 6


def table(seed: int) -> TensorDataset:
    """The same table in every session."""
    lab = torch.Generator().manual_seed(seed)
    shares = torch.rand(120, METALS, generator=lab).softmax(1)
    pairs = torch.randn(METALS, METALS, generator=lab)
    strength = 8 * torch.einsum("ni,ij,nj->n", shares, pairs, shares)
    return TensorDataset(shares, strength + 0.3 * torch.randn(120, generator=lab))


def session(
    number: int, seed: int, size: int, saved: bytes | None, keep_split: bool
) -> tuple[bytes, list[float], list[float]]:
    """Four epochs; returns the checkpoint, and the losses and scores of this session."""
    torch.manual_seed(1000 * seed + number)
    model = nn.Sequential(nn.Linear(METALS, 2 * size), nn.SELU(), nn.Linear(2 * size, size))
    model.extend([nn.SELU(), nn.Linear(size, 1)])
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    data = table(seed)
    used, held_out = random_split(data, [0.75, 0.25])
    if saved is not None:
        state = torch.load(io.BytesIO(saved))
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        if keep_split:
            used, held_out = (Subset(data, rows) for rows in state["split"])

    def error(batch: tuple[Tensor, Tensor]) -> Tensor:
        return nn.functional.mse_loss(model(batch[0]).squeeze(1), batch[1])

    losses, scores = [], []
    for _epoch in range(4):
        for batch in DataLoader(used, batch_size=15, shuffle=True):
            optimizer.zero_grad()
            loss = error(batch)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        with torch.no_grad():
            scores.append(error(held_out[:]).item())
    buffer = io.BytesIO()
    torch.save(
        {
            "model": model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "split": [list(used.indices), list(held_out.indices)],
        },
        buffer,
    )
    return buffer.getvalue(), losses, scores


def train(healthy: bool = True, seed: int = 0, size: int = 16) -> dict[str, list[float]]:
    saved, losses, scores = session(0, seed, size, None, keep_split=healthy)
    _, more, later = session(1, seed, size, saved, keep_split=healthy)
    return {"loss": losses + more, "validation": scores + later}
