"""Programs with breakpoints, for the tests of debugging in a rank."""

from __future__ import annotations

import os
import pdb
import time
from typing import Any

import torch


def walk() -> int:
    rank = int(os.environ["RANK"])
    breakpoint()
    answer = 40 + rank
    return answer  # noqa: RET504  the debugger stops between the two


def walk_on() -> int:
    os.environ["PYTHONBREAKPOINT"] = "0"
    return walk()


def trace() -> int:
    rank = int(os.environ["RANK"])
    pdb.set_trace()
    return 40 + rank


def work_for_seconds(seconds: float) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        pass


def train(ctx: Any) -> None:
    net = torch.nn.Linear(4, 4).to(ctx.dtype)
    ctx.initialize(net)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    ctx.watch(net, optimizer)
    size, rank = ctx.point.size("dp"), int(os.environ["RANK"])
    print(f"hello from {rank} of {size}")
    breakpoint()
    answer = 40 + rank
    with ctx.step():
        for index in ctx.microbatches(2):
            with ctx.microbatch(index):
                data = torch.full((2, 4), 1.0 + index, dtype=ctx.dtype)
                loss = net(data).square().sum()
                ctx.loss(loss)
                loss.backward()
        if size > 1:
            for each in net.parameters():
                torch.distributed.all_reduce(each.grad, group=ctx.group("dp"))
        optimizer.step()
    assert answer == 40 + rank
