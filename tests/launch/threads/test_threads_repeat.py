"""Ranks that run in turn compute the same bits in every run, and there may be many of them."""

from __future__ import annotations

import random

import numpy as np
import torch
import torch.distributed as dist
from in_turn import in_turn
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def train() -> bytes:
    """The parameters after two steps with dropout and random data."""
    torch.manual_seed(5)
    model = nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.5), nn.Linear(8, 2))
    wrapped = DistributedDataParallel(model)
    torch.manual_seed(100 + dist.get_rank())
    random.seed(dist.get_rank())
    np.random.seed(dist.get_rank())
    optimizer = torch.optim.Adam(model.parameters(), foreach=False)
    for _ in range(2):
        scale = random.random() + float(np.random.rand())
        wrapped(scale * torch.randn(4, 6)).sum().backward()
        dist.barrier()
        optimizer.step()
        optimizer.zero_grad()
    flat = torch.cat([each.detach().view(-1) for each in model.parameters()])
    return flat.numpy().tobytes()


def test_the_same_seed_gives_the_same_bits_in_20_runs() -> None:
    """Although each rank draws random numbers between collectives."""
    first, *others = in_turn(train, 3)
    assert others == [first, first]
    for _ in range(19):
        assert in_turn(train, 3) == [first] * 3


def test_64_ranks_train() -> None:
    """Their gradients are the mean of those of all examples."""

    def program() -> torch.Tensor:
        torch.manual_seed(1)
        model = nn.Linear(3, 2).double()
        examples = torch.randn(64, 3, dtype=torch.float64)
        wrapped = DistributedDataParallel(model)
        wrapped(examples[dist.get_rank()]).pow(2).sum().backward()
        assert model.weight.grad is not None
        return model.weight.grad

    torch.manual_seed(1)
    alone = nn.Linear(3, 2).double()
    examples = torch.randn(64, 3, dtype=torch.float64)
    (alone(examples).pow(2).sum() / 64).backward()
    for found in in_turn(program, 64):
        torch.testing.assert_close(found, alone.weight.grad)
