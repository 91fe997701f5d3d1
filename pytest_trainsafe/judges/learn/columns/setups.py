"""The recorded set-up of each parameter: whether it is trained, by whom, and its other names."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from pytest_trainsafe.judges.learn.columns.frame import Frame, Ints
from pytest_trainsafe.judges.learn.columns.light import light_change
from pytest_trainsafe.judges.learn.events.events import Change
from pytest_trainsafe.judges.learn.events.setup_text import SETUP, optimizers_in


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
