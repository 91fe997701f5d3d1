"""The test of names is the wrong way round: biases and norms decay, and matrices do not."""

from __future__ import annotations

import torch
from torch import Tensor, nn

NO_DECAY = ("bias", "LayerNorm.weight")


class Encoder(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(32, width)
        self.mix = nn.Linear(width, width)
        self.LayerNorm = nn.LayerNorm(width)
        self.classify = nn.Linear(width, 2)

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = self.embed(tokens)
        hidden = self.LayerNorm(hidden + torch.relu(self.mix(hidden)))
        return self.classify(hidden.mean(1))


def bert_groups(model: nn.Module, right: bool) -> list[dict[str, object]]:
    """Two groups: decay 0.1 for matrices and none for biases and norms."""
    listed = [(any(part in name for part in NO_DECAY), p) for name, p in model.named_parameters()]
    return [
        {"params": [p for exempt, p in listed if exempt != right], "weight_decay": 0.1},
        {"params": [p for exempt, p in listed if exempt == right], "weight_decay": 0.0},
    ]


def train(healthy: bool = True, seed: int = 0, size: int = 16) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    model = Encoder(size)
    optimizer = torch.optim.AdamW(bert_groups(model, healthy), lr=1e-2)
    tokens = torch.randint(0, 32, (64, 6))
    labels = ((tokens < 16).sum(1) > 2).long()
    losses = []
    for step in range(24):
        rows = torch.arange(step * 16, step * 16 + 16) % 64
        optimizer.zero_grad(set_to_none=True)
        loss = nn.functional.cross_entropy(model(tokens[rows]), labels[rows])
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return {"loss": losses, "norm": [model.mix.weight.norm().item()]}
