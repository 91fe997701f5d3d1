"""The slips that are noticed in a small program."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from pytest_trainsafe.judges.learn.columns.frame import Frame
from pytest_trainsafe.judges.learn.events.slips import SLIP, TRAINING, slip_in
from pytest_trainsafe.judges.learn.events.table import NONE
from pytest_trainsafe.judges.learn.instrument.observation import observe


def slips_of(program: Callable[[], object], *more: str) -> list[str]:
    """The names of the slips in a program, sorted; only slips and `more` state are observed."""
    torch.manual_seed(7)
    with observe(apis=(), variables=[f"{TRAINING}.{SLIP}", *more]) as observation:
        program()
    frame = Frame(observation.table)
    if (TRAINING, SLIP) not in frame.variables:
        return []
    own = frame.variable_of_change == frame.variables.index((TRAINING, SLIP))
    texts = frame.values["text"][frame.changes["after"][own]]
    return sorted({slip_in(frame.table.texts[int(at)]) for at in texts if at != NONE} - {""})


def net(width: int = 4, *, dropout: float = 0.0, norm: bool = False) -> nn.Sequential:
    """A small network from 4 numbers to 2, perhaps with dropout or a batch norm."""
    layers: list[nn.Module] = [nn.Linear(4, width)]
    layers += [nn.BatchNorm1d(width)] if norm else []
    layers += [nn.ReLU(), nn.Dropout(dropout), nn.Linear(width, 2)]
    return nn.Sequential(*layers)


def loss_of(model: nn.Module, rows: int = 8) -> Tensor:
    """A loss of the model on new rows."""
    found: Tensor = model(torch.randn(rows, 4)).square().mean()
    return found


def steps(model: nn.Module, optimizer: torch.optim.Optimizer, count: int = 1) -> None:
    """Train for some steps, as one should."""
    for _ in range(count):
        optimizer.zero_grad()
        loss_of(model).backward()
        optimizer.step()


def sgd(model: nn.Module) -> torch.optim.SGD:
    """An optimizer of all parameters of a model."""
    return torch.optim.SGD(model.parameters(), lr=0.1)
