"""Two replicas that add up the gradients of several micro-batches before they synchronise."""

from __future__ import annotations

import contextlib

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class Words(nn.Module):
    def __init__(self, words: int, width: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(words, width)
        self.recur = nn.LSTM(width, width, batch_first=True)
        self.score = nn.Linear(width, words)

    def forward(self, ids: Tensor) -> Tensor:
        states, _ = self.recur(self.embed(ids))
        scores: Tensor = self.score(states)
        return scores


def train(seed: int = 0, size: int = 16) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    texts = (torch.randint(0, 9, (96, 1)) + 2 * torch.arange(6)) % 9
    data = TensorDataset(texts)
    sampler: DistributedSampler[tuple[Tensor, ...]] = DistributedSampler(data, seed=seed)
    loader = DataLoader(data, batch_size=8, sampler=sampler)
    model = DistributedDataParallel(Words(9, size))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-2)
    together, losses = 2, []
    for epoch in range(4):
        sampler.set_epoch(epoch)
        for number, (ids,) in enumerate(loader):
            last = number % together == together - 1
            with contextlib.nullcontext() if last else model.no_sync():
                scores = model(ids[:, :-1])
                loss = nn.functional.cross_entropy(scores.transpose(1, 2), ids[:, 1:])
                (loss / together).backward()
            shared = loss.detach() / dist.get_world_size()
            dist.all_reduce(shared)
            losses.append(shared.item())
            if last:
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
    return {"loss": losses}
