"""Merging adds the low-rank update to the base weight each time that it is called."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class LoraLinear(nn.Module):
    """A frozen linear layer with a trainable update of low rank, which can be merged into it."""

    def __init__(self, base: nn.Linear, rank: int, idempotent: bool) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.lora_A = nn.Parameter(torch.randn(rank, base.in_features) / base.in_features**0.5)
        self.lora_B = nn.Parameter(torch.zeros(base.out_features, rank))
        self.merged, self.idempotent = False, idempotent

    def merge(self) -> None:
        if self.merged and self.idempotent:
            return
        self.base.weight.data += self.lora_B.data @ self.lora_A.data
        self.merged = True

    def unmerge(self) -> None:
        if self.merged:
            self.base.weight.data -= self.lora_B.data @ self.lora_A.data
        self.merged = False

    def forward(self, inputs: Tensor) -> Tensor:
        outputs = self.base(inputs)
        if not self.merged:
            outputs = outputs + inputs @ self.lora_A.t() @ self.lora_B.t()
        return outputs


def train(healthy: bool = True, seed: int = 0, size: int = 16) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    layer = LoraLinear(nn.Linear(size, 8), 2, idempotent=healthy)
    optimizer = torch.optim.AdamW([layer.lora_A, layer.lora_B], lr=2e-2)
    inputs = torch.randn(64, size)
    targets = layer.base(inputs) + inputs[:, :1]
    losses, drifts = [], []
    start = layer.base.weight.clone()
    for _ in range(5):
        for rows in torch.randperm(64).split(16):
            loss = nn.functional.mse_loss(layer(inputs[rows]), targets[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        layer.merge()  # for the validation
        layer.merge()  # for the export of a checkpoint
        layer.unmerge()
        drifts.append((layer.base.weight - start).abs().max().item())
    return {"loss": losses, "drift": drifts}
