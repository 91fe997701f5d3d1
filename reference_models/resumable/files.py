"""Saves and loads a program that does neither: `assert_resumable(..., save=save, load=load)`."""

from __future__ import annotations

import os
from pathlib import Path

import torch
from torch import nn


def save(folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Save what this rank holds of the model and the optimizer."""
    torch.save([model.state_dict(), optimizer.state_dict()], _file(folder))


def load(folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Load what the same rank saved."""
    weights, state = torch.load(_file(folder))
    model.load_state_dict(weights)
    optimizer.load_state_dict(state)


def _file(folder: Path) -> Path:
    return Path(folder) / f"rank{os.environ.get('RANK', '0')}.pt"
