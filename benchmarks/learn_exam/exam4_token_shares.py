"""Learns dialogues of uneven length, sharded over two processes, with one mean over tokens."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard

PAD = -100


class Block(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.ff = nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))

    def forward(self, x: Tensor) -> Tensor:
        before = torch.cat([x.new_zeros(len(x), 1, x.shape[2]), x[:, :-1]], 1)
        y: Tensor = x + self.ff(self.norm(x + 0.5 * before))
        return y


class Talker(nn.Module):
    def __init__(self, vocabulary: int, dim: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, dim)
        self.blocks = nn.ModuleList([Block(dim), Block(dim)])
        self.head = nn.Linear(dim, vocabulary)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.head(x)
        return logits


@dataclass
class Dialogues:
    seed: int
    rank: int
    vocabulary: int = 11

    def batch(self, step: int) -> tuple[Tensor, Tensor]:
        g = torch.Generator().manual_seed(self.seed * 5_000 + step * 2 + self.rank)
        start = torch.randint(self.vocabulary, (12, 1), generator=g)
        pace = torch.randint(1, 3, (12, 1), generator=g)
        text = (start + pace * torch.arange(9)) % self.vocabulary
        labels = text[:, 1:].clone()
        length = torch.randint(3, 9, (12, 1), generator=g)
        labels[torch.arange(8) >= length] = PAD
        return text[:, :-1], labels


def train(healthy: bool = True, seed: int = 0, size: int = 24) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    world = dist.get_world_size()
    dialogues = Dialogues(seed, dist.get_rank())
    talker = Talker(dialogues.vocabulary, size)
    for block in talker.blocks:
        fully_shard(block)
    fully_shard(talker)
    sgd = torch.optim.SGD(talker.parameters(), lr=0.04, momentum=0.9)
    curve = []
    for step in range(40):
        ids, labels = dialogues.batch(step)
        tokens = (labels != PAD).sum()
        dist.all_reduce(tokens)
        summed = F.cross_entropy(
            talker(ids).flatten(0, 1), labels.flatten(), ignore_index=PAD, reduction="sum"
        )
        share = summed / tokens
        sgd.zero_grad()
        (share * world if healthy else share).backward()
        sgd.step()
        mean = share.detach().clone()
        dist.all_reduce(mean)
        curve.append(mean.item())
    return {"loss": curve}
