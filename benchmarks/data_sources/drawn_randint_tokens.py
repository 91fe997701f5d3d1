"""A tensor-parallel transformer block; its tokens are drawn by `torch.randint`.

Random tokens stand for text in nearly every benchmark of language models. The block is that of
GPT-2 (Radford et al., 2019), with the layouts in a YAML file.
"""

from __future__ import annotations

from pathlib import Path

import torch
import torch.nn.functional as F
from drawn_layers import ColumnParallel, ParallelMLP, RowParallel
from torch import Tensor, nn

from pytest_trainsafe import Context

MICROBATCHES, BATCH, LENGTH, WORDS, HIDDEN, HEADS = 2, 2, 6, 16, 16, 2
LAYOUTS = Path(__file__).with_name("drawn_transformer.yaml")


class Attention(nn.Module):
    """Causal attention; each tp rank has some of the heads."""

    def __init__(self, ctx: Context) -> None:
        super().__init__()
        group = ctx.group("tp")
        self.query = ColumnParallel(HIDDEN, HIDDEN, group)
        self.key = ColumnParallel(HIDDEN, HIDDEN, group)
        self.value = ColumnParallel(HIDDEN, HIDDEN, group)
        self.projection = RowParallel(HIDDEN, HIDDEN, group)

    def forward(self, x: Tensor) -> Tensor:
        parts = self.query(x), self.key(x), self.value(x)
        query, key, value = (
            each.unflatten(-1, (-1, HIDDEN // HEADS)).transpose(1, 2) for each in parts
        )
        heads = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.projection(heads.transpose(1, 2).flatten(2))


class Language(nn.Module):
    """An embedding, one block and a head."""

    def __init__(self, ctx: Context, fault: str) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, HIDDEN)
        self.positions = nn.Embedding(LENGTH, HIDDEN)
        self.attention_norm = nn.LayerNorm(HIDDEN)
        self.attention = Attention(ctx)
        self.mlp_norm = nn.LayerNorm(HIDDEN)
        self.mlp = ParallelMLP(HIDDEN, 2 * HIDDEN, HIDDEN, ctx.group("tp"))
        self.head = nn.Linear(HIDDEN, WORDS)
        self.fault = fault if ctx.world_size > 1 else ""

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.words(tokens) + self.positions(torch.arange(LENGTH, device=tokens.device))
        x = x + self.attention(self.attention_norm(x))
        if self.fault == "cast" and x.dtype == torch.float32:
            x = x.bfloat16().float()  # fault: cast
        x = x + self.mlp(self.mlp_norm(x))
        return self.head(x)


def train(ctx: Context, fault: str = "") -> None:
    model = Language(ctx, fault).to(ctx.device, ctx.dtype)
    ctx.initialize(model, annotations=LAYOUTS)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    ctx.watch(model, optimizer, annotations=LAYOUTS)
    for step in range(2):
        with ctx.step():
            for index in ctx.microbatches(MICROBATCHES):
                with ctx.microbatch(index):
                    generator = torch.Generator().manual_seed(step * MICROBATCHES + index)
                    shape = (BATCH, LENGTH + 1)
                    tokens = torch.randint(WORDS, shape, generator=generator).to(ctx.device)
                    logits = model(tokens[:, :-1]).flatten(0, 1)
                    loss = F.cross_entropy(logits, tokens[:, 1:].flatten())
                    if not (fault == "term" and ctx.world_size > 1):  # fault: term
                        loss = loss + 1e-4 * logits.logsumexp(-1).square().mean()
                    loss = loss / MICROBATCHES
                    ctx.loss(loss)
                    loss.backward()
            optimizer.step()
            optimizer.zero_grad()
