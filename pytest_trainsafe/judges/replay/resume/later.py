"""Finds values that the resumed Run computes during the training, and differently.

Hyperparameters and which parameters are frozen, if they differ only after the first resumed step,
and the limits of clip functions.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from pytest_trainsafe.core.finding import StepSubject
from pytest_trainsafe.judges.replay.determinism.divergence import Divergence
from pytest_trainsafe.judges.replay.resume.difference import Difference
from pytest_trainsafe.judges.replay.resume.state import entry_differences
from pytest_trainsafe.trace.facts import ClipLimit
from pytest_trainsafe.trace.reader import RankTrace, Trace

_CAUSE = (
    "the program computes this value during the training from something that is not restored, such "
    "as the number of the iteration: save that in the checkpoint, and load it"
)

_LIMIT = (
    "the program computes the limit from something that is not restored, such as earlier norms: "
    "save that in the checkpoint, and load it"
)

#: The kinds of tensors that an optimizer's step changes.
_UPDATED = frozenset({"param", "master_param", "optimizer_state"})

#: The kinds of tensors that clipping may change.
_AFTER_CLIPPING = _UPDATED | {"main_grad", "grad_norm", "update"}


def is_updated(found: Divergence) -> bool:
    """Whether the first difference between two Runs is a result of an optimizer's step."""
    return found.where is not None and found.where.kind in _UPDATED


def later_difference(
    saved: Trace, resumed: Trace, steps: int, found: Divergence
) -> Difference | None:
    """The first of these values that differs before results differ; None if there is none.

    `steps` is the number of steps before the checkpoint, and `found` the first difference between
    the results. If that is a result of an optimizer's step, values that are set in this step count.
    """
    for taken in range(steps + 1, found.step + 2):
        # A result does not change which parameters are frozen.
        parts = {"lr_schedule", "scaler", "frozen"}
        if taken > found.step and not is_updated(found):
            parts = {"frozen"}
        for each in entry_differences(saved, resumed, taken):
            if each.code in parts:
                message = f"{each.message}, at the end of step {taken - 1}"
                return replace(each, message=message, cause=_CAUSE)
    return _clip_difference(saved, resumed, found)


def _clip_difference(saved: Trace, resumed: Trace, found: Divergence) -> Difference | None:
    """The first limit of a clip function that differs before the clipped gradients can differ."""
    after = found.where is not None and found.where.kind in _AFTER_CLIPPING
    for one, other in zip(saved.ranks, resumed.ranks, strict=True):
        wanted, limits = _limits(one), _limits(other)
        for place, limit in limits.items():
            step, function, _ = place
            if step > found.step or (step == found.step and not after):
                break
            was = wanted.get(place, limit)
            if was != limit:
                return Difference(
                    "clip_limit",
                    f"the clip limit is not restored: in step {step}, {function} of rank "
                    f"{one.rank} gets the limit {limit:g}, not {was:g}",
                    _LIMIT,
                    one.rank,
                    subject=StepSubject(step),
                    evidence=(("step", step), ("value", limit), ("expected", was)),
                )
    return None


def _limits(rank: RankTrace) -> dict[tuple[int, str, int], float]:
    """The limits by step, function, and the number of the function's call in the step."""
    found: dict[tuple[int, str, int], float] = {}
    calls = Counter[tuple[int, str]]()
    for each in rank.events_of(ClipLimit):
        call = each.step, each.function
        found[*call, calls[call]] = each.limit
        calls[call] += 1
    return found
