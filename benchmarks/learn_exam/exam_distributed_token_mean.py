"""Each rank divides by its own number of valid tokens before DDP averages."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel


def valid_tokens(labels: Tensor) -> Tensor:
    return (labels >= 0).sum().float()


def loss_of(model: nn.Module, tokens: Tensor, labels: Tensor, global_count: bool) -> Tensor:
    """The loss of this rank, scaled so that DDP's average over ranks is the mean over tokens."""
    summed = nn.functional.cross_entropy(
        model(tokens).flatten(0, 1), labels.flatten(), ignore_index=-1, reduction="sum"
    )
    count = valid_tokens(labels)
    if global_count:
        dist.all_reduce(count)
        return summed * dist.get_world_size() / count
    return summed / count


def train(healthy: bool = True, seed: int = 0, size: int = 16) -> dict[str, list[float]]:
    if not dist.is_initialized():
        dist.init_process_group("gloo")
    torch.manual_seed(seed)
    model = DistributedDataParallel(
        nn.Sequential(nn.Embedding(15, size), nn.GELU(), nn.Linear(size, 15))
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    generator = torch.Generator().manual_seed(7 * seed + dist.get_rank())
    shortest = 2 if dist.get_rank() == 0 else 7
    losses = []
    for _ in range(20):
        text = (torch.randint(0, 15, (6, 1), generator=generator) + torch.arange(10)) % 15
        tokens, labels = text[:, :-1], text[:, 1:].clone()
        labels[:, shortest:] = -1
        loss = loss_of(model, tokens, labels, healthy)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        mean = loss.detach() * 1.0
        dist.all_reduce(mean)
        losses.append(mean.item() / dist.get_world_size())
    return {"loss": losses, "weights": [p.abs().sum().item() for p in model.parameters()]}
