"""A third group with the new layers is prepared and never appended to the list of groups."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


class Tagger(nn.Module):
    """A recurrent tagger whose head and transition scores are new, on top of an old encoder."""

    def __init__(self, width: int, tags: int = 4) -> None:
        super().__init__()
        self.encoder = nn.LSTM(8, width, batch_first=True, bidirectional=True)
        self.fc = nn.Linear(2 * width, tags)
        self.transitions = nn.Parameter(torch.zeros(tags, tags))

    def forward(self, features: Tensor) -> Tensor:
        scores = self.fc(self.encoder(features)[0])
        previous = torch.cat([torch.zeros_like(scores[:, :1]), scores[:, :-1].softmax(-1)], 1)
        return scores + previous @ self.transitions


def groups(model: Tagger, complete: bool) -> list[dict[str, Any]]:
    parameters: list[dict[str, Any]] = []
    group: dict[str, Any] = {"lr": 3e-3, "params": list(model.encoder.parameters())}
    parameters.append(group)
    group = {"lr": 3e-2, "weight_decay": 0.0, "params": []}
    group["params"] += [*model.fc.parameters(), model.transitions]
    if complete:
        parameters.append(group)
    return parameters


def train(healthy: bool = True, seed: int = 0, size: int = 16) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    model = Tagger(size)
    optimizer = torch.optim.AdamW(groups(model, healthy), weight_decay=1e-2)
    features = torch.randn(48, 7, 8)
    tags = features[..., :4].argmax(-1)
    losses = []
    for _ in range(6):
        for rows in torch.randperm(48).split(12):
            model.zero_grad()
            scores = model(features[rows])
            loss = nn.functional.cross_entropy(scores.flatten(0, 1), tags[rows].flatten())
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return {"loss": losses, "head": [model.fc.weight.abs().sum().item()]}
