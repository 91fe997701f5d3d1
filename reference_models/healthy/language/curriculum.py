"""A GPT with tied embeddings, trained on longer sequences in larger batches as it learns.

Each stage has another length and batch size; a cosine schedule with a warm-up sets the rate by
hand, and the mean loss over some batches is estimated in evaluation mode between steps.
"""

from __future__ import annotations

import inspect
import math
from dataclasses import dataclass

import torch
import torch.nn as nn
from torch import Tensor
from torch.nn import functional as F


@dataclass
class Config:
    block_size: int = 16
    vocab_size: int = 11
    n_layer: int = 1
    n_head: int = 2
    n_embd: int = 16
    dropout: float = 0.1


class Block(nn.Module):
    """Causal self-attention and a perceptron."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(config.n_embd)
        self.c_attn = nn.Linear(config.n_embd, 3 * config.n_embd)
        self.c_proj = nn.Linear(config.n_embd, config.n_embd)
        self.ln_2 = nn.LayerNorm(config.n_embd)
        self.c_fc = nn.Linear(config.n_embd, 4 * config.n_embd)
        self.c_out = nn.Linear(4 * config.n_embd, config.n_embd)
        self.drop = nn.Dropout(config.dropout)
        self.config = config

    def forward(self, x: Tensor) -> Tensor:
        B, T, C = x.size()
        q, k, v = self.c_attn(self.ln_1(x)).split(C, dim=2)
        h = self.config.n_head
        q, k, v = (each.view(B, T, h, C // h).transpose(1, 2) for each in (q, k, v))
        p = self.config.dropout if self.training else 0.0
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=p, is_causal=True)
        x = x + self.drop(self.c_proj(y.transpose(1, 2).contiguous().view(B, T, C)))
        out: Tensor = x + self.drop(self.c_out(F.gelu(self.c_fc(self.ln_2(x)))))
        return out


class GPT(nn.Module):
    """The model; `forward` returns logits, and a loss if there are targets."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.wte = nn.Embedding(config.vocab_size, config.n_embd)
        self.wpe = nn.Embedding(config.block_size, config.n_embd)
        self.h = nn.ModuleList(Block(config) for _ in range(config.n_layer))
        self.ln_f = nn.LayerNorm(config.n_embd)
        self.lm_head = nn.Linear(config.n_embd, config.vocab_size, bias=False)
        self.wte.weight = self.lm_head.weight
        self.apply(self._init_weights)

    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, mean=0.0, std=0.02)
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)

    def forward(self, idx: Tensor, targets: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        x = self.wte(idx) + self.wpe(torch.arange(idx.size(1)))
        for block in self.h:
            x = block(x)
        logits = self.lm_head(self.ln_f(x))
        if targets is None:
            return logits[:, [-1], :], None
        return logits, F.cross_entropy(logits.view(-1, logits.size(-1)), targets.reshape(-1))

    def configure_optimizers(self, weight_decay: float, lr: float) -> torch.optim.AdamW:
        decay = [p for p in self.parameters() if p.dim() >= 2]
        nodecay = [p for p in self.parameters() if p.dim() < 2]
        groups = [
            {"params": decay, "weight_decay": weight_decay},
            {"params": nodecay, "weight_decay": 0.0},
        ]
        fused = "fused" in inspect.signature(torch.optim.AdamW).parameters
        extra = {"fused": False} if fused else {}
        return torch.optim.AdamW(groups, lr=lr, betas=(0.9, 0.95), **extra)


def get_batch(data: Tensor, batch_size: int, length: int) -> tuple[Tensor, Tensor]:
    ix = torch.randint(len(data) - length - 1, (batch_size,)).tolist()
    x = torch.stack([data[i : i + length] for i in ix])
    y = torch.stack([data[i + 1 : i + 1 + length] for i in ix])
    return x, y


@torch.no_grad()
def estimate_loss(model: GPT, splits: dict[str, Tensor], length: int) -> dict[str, float]:
    out = {}
    model.eval()
    for split, data in splits.items():
        losses = torch.zeros(2)
        for k in range(2):
            _, loss = model(*get_batch(data, 4, length))
            losses[k] = loss.item()
        out[split] = losses.mean().item()
    model.train()
    return out


def train(
    *,
    seed: int = 0,
    steps: int = 15,
    n_embd: int = 16,
    dropout: float = 0.1,
    eval_interval: int = 5,
    warmup: int = 2,
) -> list[float]:
    """Train in three stages of equal numbers of steps."""
    torch.manual_seed(seed)
    period = torch.randperm(11)
    data = period.repeat(40)
    splits = {"train": data[:360], "val": data[360:]}
    model = GPT(Config(n_embd=n_embd, dropout=dropout))
    optimizer = model.configure_optimizers(weight_decay=0.1, lr=1e-2)
    losses = []
    for it in range(steps):
        stage = 3 * it // steps
        batch_size, length = (4, 6, 10)[stage], (5, 10, 16)[stage]
        ratio = (it - warmup) / max(1, steps - warmup)
        lr = (
            1e-2 * (it + 1) / (warmup + 1)
            if it < warmup
            else 1e-3 + 0.5 * (1 + math.cos(math.pi * ratio)) * 9e-3
        )
        for group in optimizer.param_groups:
            group["lr"] = lr
        if it % eval_interval == 0:
            estimate_loss(model, splits, length)
        x, y = get_batch(splits["train"], batch_size, length)
        _, loss = model(x, y)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(loss.item())
    return losses
