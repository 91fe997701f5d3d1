"""An iterable dataset ignores the rank, so both ranks train on the same samples."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, IterableDataset


class Stream(IterableDataset[tuple[Tensor, Tensor]]):
    """An endless stream of sequences; each replica reads every `stride`-th from `start` on."""

    def __init__(self, length: int, seed: int, start: int, stride: int) -> None:
        self.length, self.seed, self.start, self.stride = length, seed, start, stride

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        generator = torch.Generator().manual_seed(self.seed)
        number = 0
        while True:
            first = torch.randint(0, 20, (1,), generator=generator)
            tokens = (first + torch.arange(self.length + 1)) % 20
            if number % self.stride == self.start:
                yield tokens[:-1], tokens[1:]
            number += 1


class NextToken(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(20, width)
        self.rnn = nn.GRU(width, width, batch_first=True)
        self.head = nn.Linear(width, 20)

    def forward(self, tokens: Tensor) -> Tensor:
        hidden, _ = self.rnn(self.embed(tokens))
        return self.head(hidden)


def train(healthy: bool = True, seed: int = 0, size: int = 16) -> dict[str, list[float]]:
    if not dist.is_initialized():
        dist.init_process_group("gloo")
    torch.manual_seed(seed)
    rank, world = dist.get_rank(), dist.get_world_size()
    stream = Stream(8, seed, rank, world) if healthy else Stream(8, seed, 0, 1)
    batches = iter(DataLoader(stream, batch_size=4))
    model = DDP(NextToken(size))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses: list[float] = []
    for _ in range(16):
        tokens, following = next(batches)
        scores = model(tokens)
        loss = nn.functional.cross_entropy(scores.flatten(0, 1), following.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(loss.item())
    return {"loss": losses}
