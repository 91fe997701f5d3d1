"""Small trainings of one device that do not restore one thing, which changes others later."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import nn

WIDTH, STEPS = 4, 5


class Loop:
    """A training of a model with dropout, whose checkpoint has all but what `lost` names.

    `state` holds the counters and tensors of the program.
    """

    def __init__(self, ctx: Any, lost: str, model: nn.Module | None = None, **state: Any) -> None:
        self.ctx, self.lost, self.state = ctx, lost, state
        torch.manual_seed(ctx.seed)
        random.seed(ctx.seed)
        self.model = model or nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Dropout(0.5))
        ctx.initialize(self.model)
        self.optimizer: Any = torch.optim.SGD(self.model.parameters(), lr=0.1, foreach=False)
        self.resumed = False
        self.saves_optimizer = True

    def steps(self) -> Iterator[int]:
        """Yield the number of each step, inside the step; load before, and save afterwards."""
        ctx = self.ctx
        ctx.watch(self.model, self.optimizer)
        with ctx.load() as folder:
            if folder is not None:
                self.load(torch.load(folder / "state.pt", weights_only=False))
        for step in ctx.steps(STEPS):
            with ctx.step():
                yield step
                self.optimizer.step()
                self.optimizer.zero_grad()
            with ctx.save() as folder:
                if folder is not None:
                    torch.save(self.saved(), folder / "state.pt")

    def saved(self) -> dict[str, Any]:
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "state": self.state,
            "rng": (torch.get_rng_state(), random.getstate()),
        }

    def load(self, saved: dict[str, Any]) -> None:
        self.resumed = True
        if self.lost == "weights":
            saved["model"]["0.bias"] += 1.0
        self.model.load_state_dict(saved["model"])
        if self.lost not in ("groups", "optimizer") and self.saves_optimizer:
            self.optimizer.load_state_dict(saved["optimizer"])
        self.state |= {k: v for k, v in saved["state"].items() if k != self.lost}
        torch.set_rng_state(saved["rng"][0])
        random.setstate(saved["rng"][1])

    def train_on(self, *inputs: torch.Tensor) -> Any:
        """Run the model forward and backward, and return its output."""
        with self.ctx.microbatch(0):
            made = self.model(*inputs)
            loss = (made[0] if isinstance(made, tuple) else made).square().mean()
            self.ctx.loss(loss)
            loss.backward()
        return made


def examples(step: int, number: int = 2) -> torch.Tensor:
    """Examples that only `step` determines; no generator draws them."""
    numbers = torch.arange(number * WIDTH, dtype=torch.float64).reshape(number, WIDTH)
    return (numbers + 10 * step).sin()


def grows_its_batch(ctx: Any, lost: str = "") -> None:
    loop = Loop(ctx, lost, size=1)
    for step in loop.steps():
        loop.train_on(examples(step, loop.state["size"]))
        loop.state["size"] += 1


def stays_in_evaluation_mode(ctx: Any, lost: str = "") -> None:
    loop = Loop(ctx, lost)
    for step in loop.steps():
        loop.model.train(not (loop.resumed and lost == "mode"))
        loop.train_on(examples(step))


def seeds_its_examples(ctx: Any, lost: str = "") -> None:
    loop = Loop(ctx, lost, position=0)
    for _ in loop.steps():
        generator = torch.Generator().manual_seed(loop.state["position"])
        loop.train_on(torch.randn(2, WIDTH, generator=generator, dtype=torch.float64))
        loop.state["position"] += 1


def seeds_numpy_for_its_examples(ctx: Any, lost: str = "") -> None:
    loop = Loop(ctx, lost, position=0)
    for _ in loop.steps():
        generator = np.random.default_rng(loop.state["position"])
        loop.train_on(torch.from_numpy(generator.standard_normal((2, WIDTH))))
        loop.state["position"] += 1


def seeds_python_for_its_examples(ctx: Any, lost: str = "") -> None:
    loop = Loop(ctx, lost, position=0)
    for _ in loop.steps():
        random.seed(loop.state["position"])
        loop.train_on(examples(0) + random.random())
        loop.state["position"] += 1


def seeds_its_dropout(ctx: Any, lost: str = "") -> None:
    loop = Loop(ctx, lost, count=0)
    for step in loop.steps():
        torch.manual_seed(loop.state["count"])
        loop.train_on(examples(step))
        loop.state["count"] += 1


def repeats_its_first_epoch(ctx: Any, lost: str = "") -> None:
    loop = Loop(ctx, lost, start=torch.get_rng_state())
    for step in loop.steps():
        if step == 0:
            torch.rand(1)
            loop.state["start"] = torch.get_rng_state()
        if step % 2 == 0:
            torch.set_rng_state(loop.state["start"])
        loop.train_on(examples(step))


def draws_after_restoring(ctx: Any, lost: str = "") -> None:
    loop = Loop(ctx, lost)
    for number, step in enumerate(loop.steps()):
        if loop.resumed and number == 0 and lost == "order":
            torch.rand(3)
        loop.train_on(examples(step))


def logs_after_restoring(ctx: Any, lost: str = "") -> None:
    loop = Loop(ctx, lost, nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Dropout(0.0)))
    for step in loop.steps():
        torch.rand(2 if loop.resumed and lost == "calls" else 1)
        loop.train_on(examples(step))


def sets_its_learning_rate(ctx: Any, lost: str = "") -> None:
    loop = Loop(ctx, lost, count=0)
    for step in loop.steps():
        loop.optimizer.param_groups[0]["lr"] = 0.1 / (loop.state["count"] + 1)
        loop.train_on(examples(step))
        loop.state["count"] += 1


def saves_no_learning_rate(ctx: Any, lost: str = "") -> None:
    loop = Loop(ctx, lost)
    loop.saves_optimizer = False  # plain SGD has no state
    for step in loop.steps():
        loop.optimizer.param_groups[0]["lr"] = 0.1 / (step + 1)
        loop.train_on(examples(step))


def halves_its_learning_rate(ctx: Any, lost: str = "") -> None:
    loop = Loop(ctx, lost, count=0)
    for step in loop.steps():
        loop.train_on(examples(step))
        loop.state["count"] += 1
        if loop.state["count"] == STEPS - 1:
            loop.optimizer.param_groups[0]["lr"] /= 2


class Recurrent(nn.Module):
    """A layer of its input and of what it returned in the step before."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor, hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        made = torch.tanh(self.layer(x) + hidden)
        return made, made


def carries_a_hidden_state(ctx: Any, lost: str = "") -> None:
    hidden = torch.zeros(2, WIDTH, dtype=torch.float64)
    loop = Loop(ctx, lost, Recurrent(), position=0, hidden=hidden)
    for _ in loop.steps():
        made = loop.train_on(examples(loop.state["position"]), loop.state["hidden"])
        loop.state["hidden"] = made[1].detach()
        loop.state["position"] += 1


def reads_what_its_weights_choose(ctx: Any, lost: str = "") -> None:
    loop = Loop(ctx, lost)
    loop.optimizer = torch.optim.SGD(loop.model.parameters(), lr=0.1, momentum=0.9, foreach=False)
    for step in loop.steps():
        weight = next(loop.model.parameters()).detach()
        loop.train_on(examples(step) + weight.sum())


def draws_as_its_weights_choose(ctx: Any, lost: str = "") -> None:
    loop = Loop(ctx, lost)
    for step in loop.steps():
        bias = list(loop.model.parameters())[1]
        torch.rand(2 if float(bias.detach().sum()) > 1 else 1)
        loop.train_on(examples(step))


def adds_a_parameter_group(ctx: Any, lost: str = "") -> None:
    loop = Loop(ctx, lost)
    weight, bias = loop.model.parameters()
    loop.optimizer = torch.optim.SGD([weight], lr=0.1, foreach=False)
    if lost != "groups" or ctx.first_step == 0:
        loop.optimizer.add_param_group({"params": [bias], "lr": 0.01})
    for step in loop.steps():
        loop.train_on(examples(step))


Program = Callable[..., None]
