"""Compresses patterns to codes of a learned code book, and restores them."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class CodeBook(nn.Module):
    def __init__(self, codes: int, width: int, commitment: float) -> None:
        super().__init__()
        self.vectors = nn.Embedding(codes, width)
        nn.init.uniform_(self.vectors.weight, -1 / codes, 1 / codes)
        self.commitment = commitment

    def forward(self, encoded: Tensor) -> tuple[Tensor, Tensor]:
        distance = torch.cdist(encoded.detach(), self.vectors.weight.detach())
        chosen = self.vectors(distance.argmin(-1))
        towards_encoder = nn.functional.mse_loss(chosen, encoded.detach())
        towards_code = nn.functional.mse_loss(encoded, chosen.detach())
        # Gradients of the decoder go to the encoder as if there were no code book.
        passed = encoded + (chosen - encoded).detach()
        return passed, towards_encoder + self.commitment * towards_code


class Compressor(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(20, width), nn.ReLU(), nn.Linear(width, 6))
        self.codes = CodeBook(12, 6, commitment=0.25)
        self.decoder = nn.Sequential(nn.Linear(6, width), nn.ReLU(), nn.Linear(width, 20))

    def forward(self, patterns: Tensor) -> tuple[Tensor, Tensor]:
        passed, cost = self.codes(self.encoder(patterns))
        return self.decoder(passed), cost


def train(seed: int = 0, size: int = 16) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    prototypes = torch.randn(6, 20)
    compressor = Compressor(size)
    optimizer = torch.optim.Adam(compressor.parameters(), lr=1e-2)
    losses = []
    for _ in range(40):
        patterns = prototypes[torch.randint(6, (32,))] + 0.1 * torch.randn(32, 20)
        restored, cost = compressor(patterns)
        error = nn.functional.mse_loss(restored, patterns)
        optimizer.zero_grad()
        (error + cost).backward()
        optimizer.step()
        losses.append(error.item())
    return {"loss": losses}
