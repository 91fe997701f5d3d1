"""The recorded set-up of each parameter: whether it is trained, by whom, and its other names."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np

from pytest_trainsafe.judges.learn.columns.frame import Bools, CallGroup, Frame, Ints
from pytest_trainsafe.judges.learn.columns.light import light_change
from pytest_trainsafe.judges.learn.events.events import Change
from pytest_trainsafe.judges.learn.events.setup_text import SETUP, optimizers_in
from pytest_trainsafe.judges.learn.events.table import NONE


def setups(frame: Frame) -> tuple[Ints, list[Change]]:
    """The rows of the changes of set-ups in `Table.changes`, in order, and these changes."""
    codes = [code for code, name in enumerate(frame.variables) if name[1] == SETUP]
    rows = np.flatnonzero(np.isin(frame.variable_of_change, codes))
    return rows, [light_change(frame.table, int(row)) for row in rows]


def holders(frame: Frame) -> Mapping[str, set[str]]:
    """The names of the optimizers that hold each parameter at some time, by its name."""
    found: dict[str, set[str]] = {}
    for change in setups(frame)[1]:
        optimizers = optimizers_in(str(change.after.plain))
        found.setdefault(change.object, set()).update(optimizers)
    return found


def owners(frame: Frame, group: CallGroup) -> list[str]:
    """The name of the optimizer of each call of a group, "" where it was not recorded."""
    slot = group.slots.get("self.name")
    if slot is None:
        return [""] * len(group.rows)
    texts = np.where(slot == NONE, NONE, frame.values["text"][np.maximum(slot, 0)])
    return ["" if text == NONE else frame.table.texts[int(text)] for text in texts]


def trains(frame: Frame, group: CallGroup, variable: str) -> Bools:
    """Which calls of a group are of an optimizer that holds some `variable`, as far as is known.

    An optimizer of the temperature of a policy holds a tensor, and no `torch.nn.Parameter`.  An
    optimizer of sharded parameters holds DTensors, and not the plain parameters that a model has
    while they are gathered.
    """
    names = owners(frame, group)
    if (variable, SETUP) not in frame.variables or not any(names):
        return np.ones(len(names), bool)
    held = {kind: _holders_of(frame, kind) for kind, about in frame.variables if about == SETUP}
    return np.array([holds_kind(name, variable, held) for name in names], bool)


def holds_kind(optimizer: str, variable: str, held: Mapping[str, Collection[str]]) -> bool:
    """Whether an optimizer holds parameters of a kind, as far as is known.

    `held` has the names of the optimizers that hold each kind.
    """
    known = held.get(variable, ())
    elsewhere = not known and any(optimizer in each for each in held.values())
    return not optimizer or optimizer in known or not (known or elsewhere)


def _holders_of(frame: Frame, variable: str) -> set[str]:
    """The names of the optimizers that hold some `variable`."""
    code = frame.variables.index((variable, SETUP))
    rows = np.flatnonzero(frame.variable_of_change == code)
    texts = {str(light_change(frame.table, int(row)).after.plain) for row in rows}
    return set().union(*map(optimizers_in, texts))
