"""Tunes low-rank adapters of a frozen language model, which saves memory in its blocks."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint


class LoraLinear(nn.Module):
    def __init__(self, base: nn.Linear, rank: int = 4, alpha: int = 8) -> None:
        super().__init__()
        self.base = base
        self.lora_A = nn.Parameter(torch.empty(rank, base.in_features))
        self.lora_B = nn.Parameter(torch.zeros(base.out_features, rank))
        nn.init.kaiming_uniform_(self.lora_A, a=math.sqrt(5))
        self.scaling = alpha / rank

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.base(x) + (x @ self.lora_A.T) @ self.lora_B.T * self.scaling
        return y


class MixingBlock(nn.Module):
    """Mixes each token with the mean of those before it."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.mix = nn.Linear(2 * width, 2 * width)
        self.out = nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(x)
        past = y.cumsum(1) / torch.arange(1, y.shape[1] + 1)[:, None]
        added: Tensor = x + self.out(nn.functional.gelu(self.mix(torch.cat([y, past], -1))))
        return added


class LanguageModel(nn.Module):
    def __init__(self, vocabulary: int, width: int) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(MixingBlock(width) for _ in range(3))
        self.lm_head = nn.Linear(width, vocabulary)
        self.gradient_checkpointing = False

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed_tokens(tokens)
        for block in self.blocks:
            if self.gradient_checkpointing and self.training:
                x = checkpoint(block, x, use_reentrant=True)
            else:
                x = block(x)
        logits: Tensor = self.lm_head(x)
        return logits


def add_adapters(model: nn.Module) -> list[nn.Parameter]:
    model.requires_grad_(False)
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, nn.Linear) and not isinstance(module, LoraLinear):
                setattr(module, name, LoraLinear(child))
    return [value for name, value in model.named_parameters() if "lora_" in name]


def prepare(model: LanguageModel, inputs_require_grads: bool) -> LanguageModel:
    model.gradient_checkpointing = True
    if inputs_require_grads:
        model.embed_tokens.register_forward_hook(lambda _, __, made: made.requires_grad_())
    return model


def tune(model: nn.Module, trainable: Iterable[nn.Parameter], steps: int) -> list[float]:
    optimizer = torch.optim.AdamW(trainable, lr=2e-2)
    losses = []
    model.train()
    for _ in range(steps):
        first = torch.randint(12, (16, 1))
        stride = torch.randint(1, 4, (16, 1))
        tokens = (first + stride * torch.arange(11)) % 12
        logits = model(tokens[:, :-1])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def train(healthy: bool = True, seed: int = 0, size: int = 16) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    model = LanguageModel(12, size)
    adapters = add_adapters(model)
    return {"loss": tune(prepare(model, inputs_require_grads=healthy), adapters, 30)}
