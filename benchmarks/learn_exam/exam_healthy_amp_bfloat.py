"""bfloat16 autocast needs no scaler; the loss is computed in float32 outside it."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def forward(model: nn.Module, tokens: Tensor) -> Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        scores = model(tokens)
    assert isinstance(scores, Tensor)
    return scores.float()


def train(seed: int = 0, size: int = 16) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    model = nn.Sequential(
        nn.Embedding(25, size),
        nn.Flatten(),
        nn.Linear(4 * size, size),
        nn.ReLU(),
        nn.Linear(size, 5),
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    tokens = torch.randint(0, 25, (80, 4))
    labels = tokens[:, 0] // 5
    losses, validation = [], []
    for _ in range(5):
        for rows in torch.arange(64).split(16):
            loss = nn.functional.cross_entropy(forward(model, tokens[rows]), labels[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        with torch.no_grad():
            scores = forward(model, tokens[64:])
        validation.append((scores.argmax(1) == labels[64:]).float().mean().item())
    return {"loss": losses, "validation": validation}
