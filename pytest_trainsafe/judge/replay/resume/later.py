"""Finds hyperparameters that the resumed Run sets to other values in a later step."""

from __future__ import annotations

from dataclasses import replace

from pytest_trainsafe.judge.replay.determinism.divergence import Divergence
from pytest_trainsafe.judge.replay.resume.difference import Difference
from pytest_trainsafe.judge.replay.resume.state import entry_differences
from pytest_trainsafe.trace.reader import Trace

_CAUSE = (
    "the program computes this value during the training from something that is not restored, such "
    "as the number of the iteration: save that in the checkpoint, and load it"
)

#: The kinds of tensors that an optimizer's step changes.
_UPDATED = frozenset({"param", "master_param", "optimizer_state"})


def is_updated(found: Divergence) -> bool:
    """Whether the first difference between two Runs is a result of an optimizer's step."""
    return found.where is not None and found.where.kind in _UPDATED


def later_difference(
    saved: Trace, resumed: Trace, steps: int, found: Divergence
) -> Difference | None:
    """The first hyperparameter that differs before results differ; None if there is none.

    `steps` is the number of steps before the checkpoint, and `found` the first difference between
    the results. If that is a result of an optimizer's step, values that are set in this step count.
    """
    for taken in range(steps + 1, found.step + 1 + is_updated(found)):
        for each in entry_differences(saved, resumed, taken):
            if each.code in ("lr_schedule", "scaler"):
                message = f"{each.message}, at the end of step {taken - 1}"
                return replace(each, message=message, cause=_CAUSE)
    return None
