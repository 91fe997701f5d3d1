"""Transformers 33844 (TrainCheck's B12): attention applies dropout during evaluation.

https://github.com/huggingface/transformers/pull/33844: the flash-attention classes copied from
Bart pass their dropout probability to a function, which applies it whatever mode the module is in.
Evaluations of the same data then differ.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from pytest_trainsafe.reference_models.training.outcome import Outcome


class Attention(nn.Module):
    """Self-attention with dropout of the attention weights."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def probability(self) -> float:
        """The dropout probability for the attention function."""
        return self.dropout if self.training else 0.0

    def forward(self, hidden: Tensor) -> Tensor:
        """Attend causally."""
        query, key, value = (
            each.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for each in self.qkv(hidden).chunk(3, dim=-1)
        )
        mixed = F.scaled_dot_product_attention(
            query, key, value, dropout_p=self.probability(), is_causal=True
        )
        output: Tensor = self.out(mixed.transpose(1, 2).flatten(2))
        return output


class AlwaysDropping(Attention):
    """Attention with the error: it applies dropout in evaluation mode too."""

    def probability(self) -> float:
        """The configured dropout probability, in training mode and in evaluation mode."""
        return self.dropout


class LanguageModel(nn.Module):
    """One block of attention between an embedding and the logits."""

    def __init__(self, attention: type[Attention], vocabulary: int, width: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.attention, self.norm = attention(width, 4, 0.3), nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, tokens: Tensor) -> Tensor:
        """The logits of every position's successor."""
        hidden = self.embedding(tokens)
        logits: Tensor = self.head(self.norm(hidden + self.attention(hidden)))
        return logits


#: The number of steps between evaluations. The first evaluation shows the error.
EVERY = 2


def train(*, faulty: bool, seed: int = 0, steps: int = 4) -> Outcome:
    """Train, and evaluate the same data twice after every `EVERY` steps.

    In the Outcome, `facts["spread"]` has, for each evaluation, the largest difference of the two
    results.
    """
    torch.manual_seed(seed)
    model = LanguageModel(AlwaysDropping if faulty else Attention, vocabulary=17, width=32)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    held_out = torch.arange(40).view(4, 10) * 5 % 17
    losses, spread = [], []
    for step in range(steps):
        model.train()
        start = torch.randint(17, (8, 1))
        tokens = (start + 5 * torch.arange(12)) % 17
        optimizer.zero_grad()
        loss = F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        losses.append(loss.item())
        if (step + 1) % EVERY == 0:
            model.eval()
            with torch.no_grad():
                first, second = model(held_out), model(held_out)
            spread.append(float((first - second).abs().max()))
    return Outcome(losses, {"spread": spread})
