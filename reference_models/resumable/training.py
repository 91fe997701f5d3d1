"""The loop of the resumable programs, which loads and saves checkpoints as `ctx` requests."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from pytest_trainsafe import TrainingCheckpoint

if TYPE_CHECKING:
    from pytest_trainsafe.record.context import Context


class Data:
    """A training's position in its data: the epoch, and how many of its batches were read.

    `open_epoch` takes the number of an epoch and returns an iterator over its batches.
    """

    def __init__(self, open_epoch: Callable[[int], Any]) -> None:
        self._open = open_epoch
        self._batches: Any = None
        self._state = {"epoch": 0, "batch": 0}

    def next(self) -> Any:
        """Return the next batch; after the last one of an epoch, the next epoch's first batch."""
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
        """Return the number of the epoch, and how many of its batches were read."""
        return dict(self._state)

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Go to the position of a saved state.

        Opens the epoch and reads the batches before the position again, which also repeats the
        random draws that reading them makes.
        """
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
    """Run a training of `steps` steps; `step` is called to take one of them.

    The other arguments are passed to `TrainingCheckpoint`.
    """
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
