"""Saves and loads checkpoints of the programs in this folder.

Each rank writes its model and optimizer to one file; its ReplayCheckpoint writes the states of the
random generators to another file in the same folder.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

import torch
from torch import nn

from pytest_trainsafe.judges.replay.checkpoints.instrument.checkpoint import ReplayCheckpoint


@dataclass(frozen=True, slots=True)
class Checkpoints:
    """Saves checkpoints, and loads the one from which pytest replays this Run.

    Saves after every `every` steps; 0 saves none.
    """

    replay: ReplayCheckpoint
    model: nn.Module
    optimizer: torch.optim.Optimizer
    every: int

    def restart(self) -> dict[str, int]:
        """Load the checkpoint from which this Run is replayed; return its counters and "step".

        If this Run is not a replay, load nothing and return {}.
        """
        folder = self.replay.resume_folder()
        if folder is None:
            return {}
        state = torch.load(folder / _own(), weights_only=True)
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        return self.replay.load(folder)

    def after(self, step: int, **counters: int) -> None:
        """Save a checkpoint if `step`, the number of the next step, is a multiple of `every`.

        `counters` are further loop counters that `restart` returns.
        """
        if not self.every or step % self.every:
            return
        folder = self.replay.folder(step)
        folder.mkdir(parents=True, exist_ok=True)
        state = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}
        torch.save(state, folder / _own())
        self.replay.save(folder, step=step, **counters)


def _own() -> str:
    return f"model-rank{os.environ.get('RANK', '0')}.pt"
