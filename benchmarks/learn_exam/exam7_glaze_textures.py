"""Textures of glazes in a few codes each: an encoder, a decoder and a codebook.

Follows https://github.com/CompVis/taming-transformers/issues/57.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

BETA, CODES, PIXELS, PARTS = 0.25, 16, 24, 4


class Coded(NamedTuple):
    vectors: Tensor
    indices: Tensor
    penalty: Tensor


class Codebook(nn.Module):
    def __init__(self, width: int, beta_on_encoder: bool) -> None:
        super().__init__()
        self.codes = nn.Embedding(CODES, width)
        nn.init.normal_(self.codes.weight, std=0.5)
        self.beta_on_encoder = beta_on_encoder

    def forward(self, z: Tensor) -> Coded:
        indices = torch.cdist(z.flatten(0, 1), self.codes.weight).argmin(1).view(z.shape[:-1])
        near = self.codes(indices)
        encoder_part = (near.detach() - z).square().mean()
        codebook_part = (near - z.detach()).square().mean()
        if self.beta_on_encoder:
            penalty = BETA * encoder_part + codebook_part
        else:
            penalty = encoder_part + BETA * codebook_part
        return Coded(z + (near - z).detach(), indices, penalty)


class GlazeModel(nn.Module):
    def __init__(self, width: int, beta_on_encoder: bool) -> None:
        super().__init__()
        self.width = width
        self.down = nn.Sequential(nn.Linear(PIXELS, 32), nn.ReLU(), nn.Linear(32, PARTS * width))
        self.down.append(nn.Tanh())
        self.book = Codebook(width, beta_on_encoder)
        self.up = nn.Sequential(nn.Linear(PARTS * width, 32), nn.ReLU(), nn.Linear(32, PIXELS))

    def forward(self, x: Tensor) -> tuple[Tensor, Coded]:
        coded = self.book(self.down(x).view(-1, PARTS, self.width))
        return self.up(coded.vectors.flatten(1)), coded


def glazes(n: int) -> Tensor:
    at = torch.linspace(0, 3, PIXELS)
    return (torch.rand(n, 1) * 3 * at + 6.28 * torch.rand(n, 1)).sin()


def train(healthy: bool = True, seed: int = 0, size: int = 8) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    model = GlazeModel(size, beta_on_encoder=healthy)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.005)
    log: dict[str, list[float]] = {"loss": [], "error": []}
    for _ in range(60):
        x = glazes(32)
        made, coded = model(x)
        error = (made - x).square().mean()
        loss = error + coded.penalty
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        log["loss"].append(loss.item())
        log["error"].append(error.item())
    return log
