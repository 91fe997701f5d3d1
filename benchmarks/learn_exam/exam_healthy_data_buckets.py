"""Sequences are sorted into buckets by length, and the order of buckets is drawn each epoch."""

from __future__ import annotations

import random
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_sequence
from torch.utils.data import DataLoader, Sampler


class BucketSampler(Sampler[list[int]]):
    def __init__(self, lengths: list[int], batch: int, seed: int) -> None:
        order = sorted(range(len(lengths)), key=lengths.__getitem__)
        self.buckets = [order[start : start + batch] for start in range(0, len(order), batch)]
        self.random = random.Random(seed)

    def __iter__(self) -> Iterator[list[int]]:
        return iter(self.random.sample(self.buckets, len(self.buckets)))

    def __len__(self) -> int:
        return len(self.buckets)


def collate(samples: list[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    lengths = torch.tensor([len(sample) for sample in samples])
    sums = torch.stack([sample.float().mean() for sample in samples])
    return pad_sequence(samples, batch_first=True), lengths, sums


class Reader(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.embed, self.gru = nn.Embedding(8, width), nn.GRU(width, width, batch_first=True)
        self.out = nn.Linear(width, 1)

    def forward(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        packed = pack_padded_sequence(
            self.embed(tokens), lengths, batch_first=True, enforce_sorted=False
        )
        return self.out(self.gru(packed)[1][-1]).squeeze(1)


def train(seed: int = 0, size: int = 16) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    data = [torch.randint(0, 8, (int(torch.randint(2, 9, ())),)) for _ in range(60)]
    sampler = BucketSampler([len(sample) for sample in data], 10, seed)
    loader: DataLoader[Tensor] = DataLoader(data, batch_sampler=sampler, collate_fn=collate)  # type: ignore[arg-type]
    model = Reader(size)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(5):
        for tokens, lengths, sums in loader:
            loss = nn.functional.mse_loss(model(tokens, lengths), sums)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return {"loss": losses}
