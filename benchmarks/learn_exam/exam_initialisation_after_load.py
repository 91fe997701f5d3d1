"""The runner initialises weights again after the constructor has loaded pretrained ones."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class DinoBackbone(nn.Module):
    """A backbone that loads pretrained weights, in the constructor or when it is initialised."""

    def __init__(self, width: int, weights: dict[str, Tensor], in_init_weights: bool) -> None:
        super().__init__()
        self.patch = nn.Linear(8, width)
        self.block = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.GELU())
        self.weights, self.in_init_weights = weights, in_init_weights
        if not in_init_weights:
            self.load_state_dict(weights)

    def init_weights(self) -> None:
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.trunc_normal_(module.weight, std=0.02)
                nn.init.zeros_(module.bias)
        if self.in_init_weights:
            self.load_state_dict(self.weights)

    def forward(self, patches: Tensor) -> Tensor:
        hidden = self.patch(patches)
        return hidden + self.block(hidden)


def published(width: int) -> dict[str, Tensor]:
    pretrained = DinoBackbone(width, {}, in_init_weights=True)
    for parameter in pretrained.parameters():
        nn.init.normal_(parameter, std=0.3)
    return pretrained.state_dict()


def train(healthy: bool = True, seed: int = 0, size: int = 16) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    weights = published(size)
    backbone = DinoBackbone(size, weights, in_init_weights=healthy)
    head = nn.Linear(size, 2)
    backbone.init_weights()  # what the runner does with every model before training
    distance = (backbone.patch.weight - weights["patch.weight"]).abs().max().item()
    optimizer = torch.optim.AdamW([*backbone.parameters(), *head.parameters()], lr=5e-3)
    patches = torch.randn(48, 4, 8)
    labels = (patches.mean((1, 2)) > 0).long()
    losses = []
    for step in range(20):
        rows = torch.arange(step * 12, step * 12 + 12) % 48
        loss = nn.functional.cross_entropy(head(backbone(patches[rows]).mean(1)), labels[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return {"loss": losses, "distance": [distance]}
