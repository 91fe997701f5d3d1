"""Gradient accumulation over micro-batches of unequal sizes, weighted by their numbers of tokens.

Batches are packed up to a number of tokens; the last window of an epoch is shorter, and is used.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional as F

PAD, BOS = 0, 1


def corpus(n: int, vocab: int, generator: torch.Generator) -> list[Tensor]:
    """Return sequences that count upwards from random tokens, each with its own stride."""
    docs = []
    for _ in range(n):
        length = int(torch.randint(3, 11, (), generator=generator))
        start, stride = torch.randint(1, 4, (2,), generator=generator).tolist()
        docs.append(
            torch.tensor([BOS, *((start + stride * i) % (vocab - 2) + 2 for i in range(length))])
        )
    return docs


def packed(docs: list[Tensor], max_tokens: int, generator: torch.Generator) -> Iterator[Tensor]:
    """Yield padded batches of at most `max_tokens` tokens, in a random order."""
    order = torch.randperm(len(docs), generator=generator).tolist()
    batch: list[Tensor] = []
    for i in order:
        longest = max([len(docs[i]), *map(len, batch)])
        if batch and longest * (len(batch) + 1) > max_tokens:
            yield nn.utils.rnn.pad_sequence(batch, batch_first=True, padding_value=PAD)
            batch = []
        batch.append(docs[i])
    if batch:
        yield nn.utils.rnn.pad_sequence(batch, batch_first=True, padding_value=PAD)


class LM(nn.Module):
    """A GRU that predicts the next token."""

    def __init__(self, vocab: int, dim: int) -> None:
        super().__init__()
        self.emb = nn.Embedding(vocab, dim, padding_idx=PAD)
        self.rnn = nn.GRU(dim, dim, batch_first=True)
        self.out = nn.Linear(dim, vocab)

    def forward(self, idx: Tensor) -> Tensor:
        h, _ = self.rnn(self.emb(idx))
        logits: Tensor = self.out(h)
        return logits


def update(
    model: nn.Module, opt: torch.optim.Optimizer, window: list[Tensor], max_norm: float
) -> float:
    """One step on the micro-batches of a window, as if they were one batch; its mean loss."""
    n_tokens = sum(int((mb[:, 1:] != PAD).sum()) for mb in window)
    total = 0.0
    for mb in window:
        logits = model(mb[:, :-1])
        nll = F.cross_entropy(
            logits.flatten(0, 1), mb[:, 1:].flatten(), ignore_index=PAD, reduction="sum"
        )
        (nll / n_tokens).backward()  # type: ignore[no-untyped-call]
        total += nll.item()
    nn.utils.clip_grad_norm_(model.parameters(), max_norm)
    opt.step()
    opt.zero_grad()
    return total / n_tokens


def train(
    *,
    seed: int = 0,
    steps: int = 5,
    dim: int = 16,
    max_tokens: int = 40,
    accumulate: int = 3,
    max_norm: float = 1.0,
) -> list[float]:
    """Train for `steps` epochs; return the mean loss of each."""
    torch.manual_seed(seed)
    g = torch.Generator().manual_seed(seed)
    docs = corpus(30, 14, g)
    model = LM(14, dim)
    opt = torch.optim.AdamW(model.parameters(), lr=2e-2, betas=(0.9, 0.95))
    epochs = []
    for _ in range(steps):
        window: list[Tensor] = []
        losses = []
        for micro_batch in packed(docs, max_tokens, g):
            window.append(micro_batch)
            if len(window) == accumulate:
                losses.append(update(model, opt, window, max_norm))
                window = []
        if window:
            losses.append(update(model, opt, window, max_norm))
        epochs.append(sum(losses) / len(losses))
    return epochs
