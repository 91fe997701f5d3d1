"""An MLP-Mixer with stochastic depth and mixup."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class MixerBlock(nn.Module):
    def __init__(self, tokens: int, width: int, drop: float) -> None:
        super().__init__()
        self.drop = drop
        self.norm_tokens, self.norm_channels = nn.LayerNorm(width), nn.LayerNorm(width)
        self.tokens = nn.Sequential(
            nn.Linear(tokens, 2 * tokens), nn.GELU(), nn.Linear(2 * tokens, tokens)
        )
        self.channels = nn.Sequential(
            nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)
        )

    def path(self, branch: Tensor) -> Tensor:
        """Leaves out the branch for some samples in training, and scales up the others."""
        if not self.training:
            return branch
        keep = (torch.rand(len(branch), 1, 1) > self.drop).float()
        return branch * keep / (1 - self.drop)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.path(self.tokens(self.norm_tokens(x).transpose(1, 2)).transpose(1, 2))
        return x + self.path(self.channels(self.norm_channels(x)))


def train(seed: int = 0, size: int = 16) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(6, size), MixerBlock(5, size, 0.1), MixerBlock(5, size, 0.1))
    head = nn.Linear(size, 3)
    optimizer = torch.optim.AdamW([*model.parameters(), *head.parameters()], lr=5e-3)
    labels = torch.arange(60) % 3
    patches = torch.randn(60, 5, 6)
    patches[torch.arange(60), labels] += 1.5
    losses = []
    for _ in range(8):
        for rows in torch.randperm(60).split(20):
            other = rows[torch.randperm(20)]
            share = float(torch.distributions.Beta(0.2, 0.2).sample())
            scores = head(model(share * patches[rows] + (1 - share) * patches[other]).mean(1))
            loss = share * nn.functional.cross_entropy(scores, labels[rows])
            loss = loss + (1 - share) * nn.functional.cross_entropy(scores, labels[other])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return {"loss": losses}
