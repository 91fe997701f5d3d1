"""The events of Runs that save a checkpoint, or go on from one: what state the training is in.

`record/resume/` writes them, and `judge/replay/resume/` compares those of the two Runs.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from pytest_trainsafe.core.layout import Count
from pytest_trainsafe.core.tensor_id import Step
from pytest_trainsafe.trace.facts import Text

#: What a piece of state belongs to: the codes of `assert_resumable`, without "resume:".
Part = Literal["moment", "step_counter", "lr_schedule", "scaler", "data_order", "rng"]

#: Maximum number of pieces of state in one event: some for each parameter.
_MOST = 2**20


class StateEntry(msgspec.Struct, frozen=True, array_like=True):
    """One piece of state that is no tensor: a name ("StepLR.last_epoch") and a value as text."""

    part: Part
    name: Text
    value: Text


class TrainingState(msgspec.Struct, frozen=True, tag="training_state"):
    """The state of the training after `steps` steps: at the start of a step, or at the end."""

    steps: Count
    entries: Annotated[tuple[StateEntry, ...], msgspec.Meta(max_length=_MOST)]

    def of(self, part: Part) -> dict[str, str]:
        """The values of one part by name."""
        return {entry.name: entry.value for entry in self.entries if entry.part == part}


class CheckpointEvent(msgspec.Struct, frozen=True, tag="checkpoint"):
    """The program has saved a checkpoint, or loaded one, after `steps` steps."""

    action: Literal["save", "load"]
    steps: Step
