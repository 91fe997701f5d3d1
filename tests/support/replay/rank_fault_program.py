"""A training of two ranks that does not restore other things on one rank than on the other."""

from __future__ import annotations

import random
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

WIDTH, BEFORE, STEPS = 4, 2, 5


def train(ctx: Any, fault: str = "") -> None:
    """Train on numbers that torch draws in every step and Python in every second one."""
    model = nn.Linear(WIDTH, 1)
    ctx.initialize(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, foreach=False)
    ctx.watch(model, optimizer)
    rank, position = ctx.rank, 0
    torch.manual_seed(ctx.seed + 100 * rank)
    random.seed(ctx.seed + 100 * rank)
    with ctx.load() as folder:
        if folder is not None:
            state = torch.load(folder / f"rank{rank}.pt", weights_only=False)
            load_state(state["optimizer"]["state"], fault, rank)
            model.load_state_dict(state["model"])
            optimizer.load_state_dict(state["optimizer"])
            position = state["position"]
            if fault == "positions" and rank == 0:
                position -= 1
            if fault == "positions" and rank == 1:
                position += 1
            if fault == "position of all":
                position -= 1
            torch.set_rng_state(state["torch"])
            if fault != "streams" or rank == 0:
                random.setstate(state["python"])
            draw_again(fault, rank)
    for step in ctx.steps(STEPS):
        with ctx.step():
            for index in ctx.microbatches(2):
                with ctx.microbatch(index):
                    x = torch.linspace(-index, position + 1, WIDTH, dtype=ctx.dtype)[None]
                    noise = torch.rand(1, dtype=ctx.dtype)
                    noise = noise + (random.random() if step % 2 else 0.0)
                    loss = (model(x) + noise).square().mean()
                    loss.backward()
                    ctx.loss(loss)
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad, group=ctx.group("dp"))
            optimizer.step()
            optimizer.zero_grad()
            position += 1
        with ctx.save() as folder:
            if folder is not None:
                parts: dict[str, Any] = {"model": model, "optimizer": optimizer}
                state = {name: part.state_dict() for name, part in parts.items()}
                state |= {"position": position, "torch": torch.get_rng_state()}
                torch.save(state | {"python": random.getstate()}, folder / f"rank{rank}.pt")


def load_state(states: dict[int, Any], fault: str, rank: int) -> None:
    """Change the optimizer's states as the fault says."""
    for number, held in states.items():
        if fault == "moments" and number == rank:
            held["exp_avg"].zero_()
        if fault == "moments of all":
            held["exp_avg"].zero_()


def draw_again(fault: str, rank: int) -> None:
    """Draw numbers after the streams were restored, as the fault says."""
    if fault == "streams of all":
        torch.rand(1)
    if fault == "streams":
        if rank == 0:
            torch.rand(1)
            random.random()
        else:
            for _ in range(3):
                torch.rand(1)
