"""Data-parallel embedding with an MLP; one worker of a DataLoader draws this rank's micro-batches.

The sampler of batches gives a rank the numbers of its own micro-batches only, and the data set
draws each sample with NumPy from its number.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch
import torch.nn.functional as F
from drawn_layers import sum_gradients
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from pytest_trainsafe import Context

MICROBATCHES, BATCH, LENGTH, WORDS, HIDDEN = 4, 3, 4, 10, 8


class Sentences(Dataset):
    """Words, a value for each of them and a class."""

    def __len__(self) -> int:
        return 2 * MICROBATCHES * BATCH

    def __getitem__(self, number: int) -> tuple[Tensor, Tensor, int]:
        rng = np.random.default_rng(number)
        words = torch.from_numpy(rng.integers(WORDS, size=LENGTH))
        values = torch.from_numpy(rng.normal(size=LENGTH).astype(np.float32))
        return words, values, int(rng.integers(2))


class Model(nn.Module):
    """A weighted mean of word vectors, and an MLP."""

    def __init__(self, fault: str) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, HIDDEN)
        self.mlp = nn.Sequential(nn.Linear(HIDDEN, 16), nn.GELU(), nn.Linear(16, 2))
        self.fault = fault

    def forward(self, words: Tensor, values: Tensor) -> Tensor:
        x = (self.embedding(words) * values[..., None]).mean(1)
        if self.fault == "cast" and x.dtype == torch.float32:
            x = x.bfloat16().float()  # fault: cast
        if self.fault != "term":  # fault: term
            x = x + 1e-4 * values.sum(1, keepdim=True)
        return self.mlp(x)


def samples_of(step: int, numbers: Iterable[int]) -> list[list[int]]:
    """The numbers of the samples of each of these micro-batches."""
    firsts = [(step * MICROBATCHES + number) * BATCH for number in numbers]
    return [list(range(first, first + BATCH)) for first in firsts]


def train(ctx: Context, fault: str = "") -> None:
    model = Model(fault if ctx.world_size > 1 else "").to(ctx.device, ctx.dtype)
    ctx.initialize(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    ctx.watch(model, optimizer)
    for step in range(2):
        with ctx.step():
            mine = list(ctx.microbatches(MICROBATCHES))
            batches = samples_of(step, mine)
            loader = DataLoader(Sentences(), batch_sampler=batches, num_workers=1)
            for index, (words, values, labels) in zip(mine, loader, strict=True):
                with ctx.microbatch(index):
                    values = values.to(ctx.device, ctx.dtype)
                    logits = model(words.to(ctx.device), values)
                    loss = F.cross_entropy(logits, labels.to(ctx.device)) / MICROBATCHES
                    ctx.loss(loss)
                    loss.backward()
            sum_gradients(model, ctx.group("dp"))
            optimizer.step()
            optimizer.zero_grad()
