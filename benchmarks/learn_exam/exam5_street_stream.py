"""Two replicas read lines of street names as a stream, and learn which letter comes next."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch import Tensor, nn, optim
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, IterableDataset

WORDS = ("north", "south", "elm", "oak", "mill", "church", "river", "hill", "market", "castle")
KINDS = ("street", "road", "lane", "square")


class Lines(IterableDataset[Tensor]):
    def __init__(self, count: int, shard: int, shards: int, seed: int) -> None:
        self.count, self.shard, self.shards, self.seed = count, shard, shards, seed
        self.epoch = 0

    def __iter__(self) -> Iterator[Tensor]:
        g = torch.Generator().manual_seed(self.seed + 7919 * self.epoch)
        for at in range(self.count):
            word, kind = (int(torch.randint(n, (), generator=g)) for n in (len(WORDS), len(KINDS)))
            if at % self.shards == self.shard:
                text = f"{WORDS[word]} {KINDS[kind]}".ljust(16, "_")[:16]
                yield torch.tensor([ord(c) - 95 if c != " " else 27 for c in text])


class LetterModel(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(28, width)
        self.rnn = nn.GRU(width, width, batch_first=True)
        self.head = nn.Linear(width, 28)

    def forward(self, letters: Tensor) -> Tensor:
        scores: Tensor = self.head(self.rnn(self.embed(letters))[0])
        return scores


def train(healthy: bool = True, seed: int = 0, size: int = 24) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    rank, world = dist.get_rank(), dist.get_world_size()
    shard, shards = (rank, world) if healthy else (0, 1)
    lines = Lines(96 * shards // world, shard, shards, seed)
    model = DDP(LetterModel(size))
    opt = optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for epoch in range(5):
        lines.epoch = epoch
        for letters in DataLoader(lines, batch_size=8):
            scores = model(letters[:, :-1])
            loss = nn.functional.cross_entropy(scores.transpose(1, 2), letters[:, 1:])
            opt.zero_grad()
            loss.backward()
            opt.step()
            losses.append(loss.item())
    return {"loss": losses}
