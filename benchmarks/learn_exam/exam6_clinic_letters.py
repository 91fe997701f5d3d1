"""Tunes low-rank additions of a frozen encoder on letters; blocks are recomputed to save memory.

Follows https://github.com/huggingface/transformers/issues/26221.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint


class LoraLinear(nn.Module):
    def __init__(self, base: nn.Linear, rank: int = 4, alpha: float = 8.0) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.lora_a = nn.Parameter(torch.randn(rank, base.in_features) / base.in_features**0.5)
        self.lora_b = nn.Parameter(torch.zeros(base.out_features, rank))
        self.scaling = alpha / rank

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + self.scaling * (x @ self.lora_a.T) @ self.lora_b.T


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)

    def forward(self, h: Tensor) -> Tensor:
        mixed = self.norm(h + h.mean(dim=1, keepdim=True))
        return h + self.down(torch.relu(self.up(mixed)))


class Encoder(nn.Module):
    def __init__(self, tokens: int, width: int, classes: int) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(tokens, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(3))
        self.score = nn.Linear(width, classes)
        self.gradient_checkpointing = False

    def forward(self, ids: Tensor) -> Tensor:
        h = self.embed_tokens(ids)
        for block in self.blocks:
            if self.gradient_checkpointing and self.training:
                h = checkpoint(block, h, use_reentrant=True)
            else:
                h = block(h)
        return self.score(h.mean(dim=1))

    def enable_input_require_grads(self) -> None:
        def require(_module: nn.Module, _args: Any, output: Tensor) -> None:
            output.requires_grad_(True)

        self.embed_tokens.register_forward_hook(require)


def with_lora(model: Encoder) -> Encoder:
    model.requires_grad_(False)
    for block in model.blocks:
        assert isinstance(block, Block)
        block.up, block.down = LoraLinear(block.up), LoraLinear(block.down)  # type: ignore[assignment]
    model.score.requires_grad_(True)
    return model


def train(healthy: bool = True, seed: int = 0, size: int = 24) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    model = with_lora(Encoder(40, size, classes=4))
    model.gradient_checkpointing = True
    if healthy:
        model.enable_input_require_grads()
    trainable = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trainable, lr=1e-2)
    topic_of = torch.randint(4, (40,))
    losses = []
    for _ in range(24):
        ids = torch.randint(40, (24, 10))
        topic = nn.functional.one_hot(topic_of[ids], 4).sum(1).argmax(-1)
        loss = nn.functional.cross_entropy(model(ids), topic)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return {"loss": losses}
