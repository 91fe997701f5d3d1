"""Writes short postcards of unequal length: a causal GRU, a collator that pads, and a Trainer.

Follows https://github.com/huggingface/transformers/issues/23530.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

EOS = 0
IGNORED = -100


@dataclass
class Tokenizer:
    eos_token_id: int = EOS
    pad_token_id: int | None = None


@dataclass
class LanguageModelCollator:
    tokenizer: Tokenizer
    by_token: bool

    def __call__(self, postcards: list[list[int]]) -> dict[str, Tensor]:
        pad = self.tokenizer.pad_token_id
        assert pad is not None
        longest = max(map(len, postcards))
        ids = torch.full((len(postcards), longest), pad)
        mask = torch.zeros_like(ids)
        for row, postcard in enumerate(postcards):
            ids[row, : len(postcard)] = torch.tensor(postcard)
            mask[row, : len(postcard)] = 1
        padded = ids == pad if self.by_token else mask == 0
        return {"ids": ids, "labels": ids.masked_fill(padded, IGNORED)}


class Writer(nn.Module):
    def __init__(self, vocabulary: int, width: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.rnn = nn.GRU(width, width, batch_first=True)
        self.lm_head = nn.Linear(width, vocabulary)

    def forward(self, ids: Tensor, labels: Tensor) -> Tensor:
        states, _ = self.rnn(self.embed(ids))
        logits = self.lm_head(states[:, :-1])
        return F.cross_entropy(logits.flatten(0, 1), labels[:, 1:].flatten(), ignore_index=IGNORED)


class Trainer:
    def __init__(
        self, model: Writer, collator: LanguageModelCollator, data: list[list[int]]
    ) -> None:
        self.model, self.collator, self.data = model, collator, data
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        self.log: list[float] = []

    def batches(self, size: int) -> Iterator[dict[str, Tensor]]:
        order = torch.randperm(len(self.data)).tolist()
        for start in range(0, len(order), size):
            yield self.collator([self.data[i] for i in order[start : start + size]])

    def train(self, epochs: int) -> None:
        self.model.train()
        for _ in range(epochs):
            for batch in self.batches(12):
                loss = self.model(**batch)
                loss.backward()
                nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
                self.optimizer.step()
                self.optimizer.zero_grad()
                self.log.append(loss.item())


def train(healthy: bool = True, seed: int = 0, size: int = 32) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    tokenizer = Tokenizer()
    tokenizer.pad_token_id = tokenizer.eos_token_id
    postcards = []
    for _ in range(72):
        length = int(torch.randint(3, 9, ()))
        first = int(torch.randint(1, 10, ()))
        postcards.append([1 + (first + 3 * k) % 10 for k in range(length)] + [EOS])
    trainer = Trainer(Writer(11, size), LanguageModelCollator(tokenizer, not healthy), postcards)
    trainer.train(epochs=4)
    return {"loss": trainer.log}
