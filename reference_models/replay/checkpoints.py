"""The checkpoints of these programs: model and optimizer, and a ReplayCheckpoint beside them."""

from __future__ import annotations

import os
from dataclasses import dataclass

import torch
from torch import nn

from pytest_trainsafe.record.replay.checkpoint import ReplayCheckpoint


@dataclass(frozen=True, slots=True)
class Checkpoints:
    """Saves after every `every` steps (0: never), and restarts from the checkpoint pytest names."""

    replay: ReplayCheckpoint
    model: nn.Module
    optimizer: torch.optim.Optimizer
    every: int

    def restart(self) -> dict[str, int]:
        """Load the checkpoint to continue from; returns the counters, empty for a first start."""
        folder = self.replay.resume_folder()
        if folder is None:
            return {}
        state = torch.load(folder / _own(), weights_only=True)
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        return self.replay.load(folder)

    def after(self, step: int, **counters: int) -> None:
        """Save a checkpoint if one is due. `step` is the number of the next step."""
        if not self.every or step % self.every:
            return
        folder = self.replay.folder(step)
        folder.mkdir(parents=True, exist_ok=True)
        state = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}
        torch.save(state, folder / _own())
        self.replay.save(folder, step=step, **counters)


def _own() -> str:
    return f"model-rank{os.environ.get('RANK', '0')}.pt"
