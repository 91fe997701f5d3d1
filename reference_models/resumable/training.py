"""The loop of the resumable programs: it loads, trains, and saves where it is asked to."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from pytest_trainsafe import TrainingCheckpoint

if TYPE_CHECKING:
    from pytest_trainsafe.record.context import Context


class Data:
    """Where a training is in its data: the epoch, and the batches of it that were read.

    `open_epoch` starts to read an epoch and returns its batches.
    """

    def __init__(self, open_epoch: Callable[[int], Any]) -> None:
        self._open = open_epoch
        self._batches: Any = None
        self._state = {"epoch": 0, "batch": 0}

    def next(self) -> Any:
        """The next batch, of the next epoch where this one is over."""
        if self._batches is None:
            self._batches = self._open(self._state["epoch"])
        batch = next(self._batches, None)
        if batch is None:
            self._state = {"epoch": self._state["epoch"] + 1, "batch": 0}
            self._batches = None
            return self.next()
        self._state["batch"] += 1
        return batch

    def state_dict(self) -> dict[str, int]:
        """The epoch and the batch."""
        return dict(self._state)

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Go to where `state_dict` was: what reading draws is drawn again."""
        self._state = dict(state)
        self._batches = self._open(state["epoch"])
        for _ in range(state["batch"]):
            next(self._batches)


def train(
    ctx: Context,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    step: Callable[[], None],
    steps: int,
    *,
    shared: Mapping[str, Any] | None = None,
    per_rank: Mapping[str, Any] | None = None,
    generators: Mapping[str, torch.Generator] | None = None,
) -> None:
    """Take `steps` steps; the other arguments are those of `TrainingCheckpoint`."""
    checkpoint = TrainingCheckpoint(
        model, optimizer, shared=shared, per_rank=per_rank, generators=generators
    )
    ctx.watch(model, optimizer)
    with ctx.load() as folder:
        if folder is not None:
            checkpoint.load(folder)
            checkpoint.load_rng(folder)  # last: loaders draw when they are iterated over
    for _ in ctx.steps(steps):
        with ctx.step():
            step()
        with ctx.save() as folder:
            if folder is not None:
                checkpoint.save(folder)
