"""Adds adapters to a frozen reader of short reviews, whose layers recompute their activations."""

from __future__ import annotations

import math

import torch
import torch.nn as nn
from torch.utils.checkpoint import checkpoint


class Adapted(nn.Module):
    """A frozen linear layer and a trainable low-rank correction."""

    def __init__(self, inner: nn.Linear, rank: int) -> None:
        super().__init__()
        self.inner = inner.requires_grad_(False)
        self.lora_a = nn.Parameter(torch.randn(rank, inner.in_features) / math.sqrt(rank))
        self.lora_b = nn.Parameter(torch.zeros(inner.out_features, rank))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.inner(x) + (x @ self.lora_a.T) @ self.lora_b.T
        return out


class Layer(nn.Module):
    def __init__(self, d: int) -> None:
        super().__init__()
        self.mix = Adapted(nn.Linear(d, d), rank=4)
        self.out = Adapted(nn.Linear(d, d), rank=4)

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        pooled = h.mean(1, keepdim=True)
        return h + self.out(torch.tanh(self.mix(h) + pooled))


class Reader(nn.Module):
    def __init__(self, d: int, require_input_grads: bool) -> None:
        super().__init__()
        self.words = nn.Embedding(20, d).requires_grad_(False)
        self.layers = nn.ModuleList(Layer(d) for _ in range(2))
        self.classifier = nn.Linear(d, 2)
        if require_input_grads:
            self.words.register_forward_hook(lambda _m, _i, out: out.requires_grad_(True))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        h = self.words(ids)
        for layer in self.layers:
            h = checkpoint(layer, h, use_reentrant=True)
        logits: torch.Tensor = self.classifier(h.mean(1))
        return logits


def reviews(n: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A review is good if praise (words 0 to 3) comes without a complaint (4 to 7)."""
    ids = torch.randint(20, (n, 6))
    praise, complaint = (ids < 4).any(1), ((ids >= 4) & (ids < 8)).any(1)
    return ids, (praise & ~complaint).long()


def train(healthy: bool = True, seed: int = 0, size: int = 24) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    reader = Reader(size, require_input_grads=healthy)
    trainable = [p for p in reader.parameters() if p.requires_grad]
    adam = torch.optim.Adam(trainable, lr=1e-2)
    losses, adapters = [], []
    for _ in range(60):
        ids, good = reviews(32)
        loss = nn.functional.cross_entropy(reader(ids), good)
        adam.zero_grad()
        loss.backward()
        adam.step()
        losses.append(loss.item())
        ups = [p.detach() for n, p in reader.named_parameters() if n.endswith("lora_b")]
        adapters.append(sum(up.norm().item() for up in ups))
    return {"loss": losses, "adapters": adapters}
