"""Low-rank adapters in a frozen stack whose activations are recomputed in backward."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint


class Adapted(nn.Module):
    def __init__(self, base: nn.Linear, rank: int) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.lora_A = nn.Parameter(torch.randn(rank, base.in_features) / base.in_features**0.5)
        self.lora_B = nn.Parameter(torch.zeros(base.out_features, rank))

    def forward(self, x: Tensor) -> Tensor:
        fixed: Tensor = self.base(x)
        return fixed + 2.0 * (x @ self.lora_A.T @ self.lora_B.T)


class Layer(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width).requires_grad_(False)
        self.up = Adapted(nn.Linear(width, 2 * width), rank=4)
        self.down = Adapted(nn.Linear(2 * width, width), rank=4)

    def forward(self, x: Tensor) -> Tensor:
        change: Tensor = self.down(torch.relu(self.up(self.norm(x))))
        return x + change


class Stack(nn.Module):
    def __init__(self, words: int, width: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(words, width).requires_grad_(False)
        self.layers = nn.ModuleList(Layer(width) for _ in range(2))
        self.score = nn.Linear(width, 3)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids).mean(1)
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=True)
        scores: Tensor = self.score(x)
        return scores


def train(healthy: bool = True, seed: int = 0, size: int = 16) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    model = Stack(12, size)
    if healthy:
        model.embed.register_forward_hook(lambda module, args, output: output.requires_grad_())
    trainable = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trainable, lr=1e-2)
    losses = []
    for _ in range(26):
        ids = torch.randint(0, 12, (32, 3))
        labels = (ids.sum(1) // 6).clamp(0, 5) // 2
        loss = nn.functional.cross_entropy(model(ids), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return {"loss": losses}
