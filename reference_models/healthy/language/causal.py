"""A causal transformer: AdamW, warm-up, clipping, dropout that evaluations turn off."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from pytest_trainsafe.reference_models.toolkit.generation import Generator
from pytest_trainsafe.reference_models.toolkit.pretrained import (
    PretrainedModel,
    ResidualProjection,
)


class Layer(nn.Module):
    """Attention and a perceptron, each after a layer norm."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.p = heads, dropout
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.c_proj = nn.Linear(width, 3 * width), ResidualProjection(width, width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width), nn.Dropout(dropout)
        )

    def forward(self, x: Tensor) -> Tensor:
        """The residual stream after this layer."""
        batch, length, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).split(width, dim=2)
        q, k, v = (t.view(batch, length, self.heads, -1).transpose(1, 2) for t in (q, k, v))
        y = F.scaled_dot_product_attention(
            q, k, v, is_causal=True, dropout_p=self.p if self.training else 0.0
        )
        x = x + self.c_proj(y.transpose(1, 2).reshape(batch, length, width))
        out: Tensor = x + self.mlp(self.norm2(x))
        return out


class Model(PretrainedModel):
    """Token and position embeddings, layers, tied output."""

    def __init__(self, vocabulary: int, width: int, layers: int, dropout: float) -> None:
        super().__init__()
        self.layers = layers
        self.wte, self.wpe = nn.Embedding(vocabulary, width), nn.Embedding(32, width)
        self.blocks = nn.ModuleList(Layer(width, 4, dropout) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.post_init()

    def forward(self, ids: Tensor) -> Tensor:
        """The logits of the next tokens."""
        x = self.wte(ids) + self.wpe(torch.arange(ids.shape[1]))
        for layer in self.blocks:
            x = layer(x)
        return F.linear(self.norm(x), self.wte.weight)


def train(
    *, seed: int = 0, steps: int = 8, width: int = 32, layers: int = 2, dropout: float = 0.1
) -> list[float]:
    """Train on arithmetic progressions; evaluate every fourth step."""
    torch.manual_seed(seed)
    model = Model(24, width, layers, dropout)
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3, betas=(0.9, 0.95))
    warmup = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda n: min(1.0, (n + 1) / 3))

    def batch(count: int) -> Tensor:
        start, stride = torch.randint(24, (count, 1)), torch.randint(1, 4, (count, 1))
        return (start + stride * torch.arange(14)) % 24

    losses = []
    for step in range(steps):
        model.train()
        ids = batch(12)
        loss = F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        warmup.step()
        losses.append(loss.item())
        if step % 4 == 3:
            model.eval()
            with torch.no_grad():
                ids = batch(4)
                F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
            Generator(model, window=16).generate(ids[:, : 2 + step], max_new_tokens=4)
    return losses
