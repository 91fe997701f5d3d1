"""Saves and loads the state of programs that have no code for it.

Pass the functions to the check: `assert_resumable(..., save=save, load=load)`.
"""

from __future__ import annotations

import os
from pathlib import Path

import torch
from torch import nn


def save(folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Save this rank's model and optimizer, and the tensors that the optimizer updates.

    If the optimizer updates master weights instead of the model's parameters, no state dict
    contains the master weights, so they are saved separately.
    """
    torch.save([model.state_dict(), optimizer.state_dict(), _updated(optimizer)], _file(folder))


def load(folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Load the file that `save` wrote on the same rank."""
    weights, state, updated = torch.load(_file(folder), weights_only=True)
    model.load_state_dict(weights)
    optimizer.load_state_dict(state)
    for parameter, values in zip(_updated(optimizer), updated, strict=True):
        parameter.copy_(values)


def _updated(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    return [each.detach() for group in optimizer.param_groups for each in group["params"]]


def _file(folder: Path) -> Path:
    return Path(folder) / f"rank{os.environ.get('RANK', '0')}.pt"
