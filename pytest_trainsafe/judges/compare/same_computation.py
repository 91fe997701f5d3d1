"""Decides whether a Run that measures rounding did the computation that it measures.

The distance between two Runs is a measure of rounding only if both start from the same values,
draw the same random numbers and train on the same data.  Otherwise the distance is that of two
data sets, and a bug could hide in it.  Called by `RungTraces`, and by the
ladder for a Run repeated.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Literal

import torch

from pytest_trainsafe.align.logical import logical_tensor
from pytest_trainsafe.align.sketched import is_whole, logical_sketch
from pytest_trainsafe.core.rungs.table import rung_named
from pytest_trainsafe.core.tensor_id import INITIAL, TensorId
from pytest_trainsafe.judges.compare.tensors.screen import same
from pytest_trainsafe.trace.reader import RankTrace, Trace
from pytest_trainsafe.trace.rng.events import DrawEvent, UnseenDraws
from pytest_trainsafe.trace.rng.ledger import ledger
from pytest_trainsafe.trace.schema import InputEvent

#: How many roundings may separate an input from the same input in another dtype: a program may
#: compute its data (scale or normalise it) in the dtype of the Run.
ROUNDINGS = 64.0
LOW_ROUNDINGS = 4.0

#: Of two Runs with the same seed, a tensor that differs by more than this many roundings shows
#: that the program differs from itself.  Threads may sum in another order, which rounds otherwise.
SELF_ROUNDINGS = 2.0**20


@dataclass(frozen=True, slots=True)
class Flaw:
    """Why the distance of a Run from its reference does not measure rounding.

    `what` continues "the reference ...": "draws other random numbers at train.py:12".
    """

    kind: Literal["start", "draws", "steps", "input", "value"]
    what: str
    id: TensorId | None = None


def flaw_of(reference: Trace, other: Trace, depends: Collection[TensorId] = ()) -> Flaw | None:
    """The first flaw of a Run as a measure of the reference's rounding; None if there is none.

    `other` is a Run of the same program at the same Point, in the same dtype or a wider one.
    `depends` has the inputs that depend on rounding, because the program computes them with its
    model; these are not compared.
    """
    found = _other_start(reference, other) or _other_draws(reference, other)
    found = found or _other_steps(reference, other)
    return found or next(other_inputs(reference, other, depends), None)


def _other_start(reference: Trace, other: Trace) -> Flaw | None:
    for id in reference.ids():
        if id.step != INITIAL:
            break
        if not other.holders(id) or not _equal(reference, other, id):
            return Flaw("start", f"starts from different parameters, such as {id.path}", id)
    return None


def _equal(left: Trace, right: Trace, id: TensorId) -> bool:
    if not (is_whole(left, id) and is_whole(right, id)):
        return same(logical_sketch(left, id), logical_sketch(right, id))
    here, there = (logical_tensor(trace, id).whole for trace in (left, right))
    return (
        here is not None
        and there is not None
        and here.shape == there.shape
        and not bool(((here != there) & ~(here.isnan() & there.isnan())).any())
    )


def _other_draws(reference: Trace, other: Trace) -> Flaw | None:
    for ours, theirs in zip(reference.ranks, other.ranks, strict=False):
        here, there = _draws(ours), _draws(theirs)
        for name in [*here, *(name for name in there if name not in here)]:
            mine, its = here.get(name, []), there.get(name, [])
            for number in range(max(len(mine), len(its))):
                one = mine[number] if number < len(mine) else None
                two = its[number] if number < len(its) else None
                if one is None or two is None or _states(one) != _states(two):
                    return Flaw("draws", f"draws different random numbers{_by(one or two)}")
        # Without a ledger, only the state of the default generators is known.
        for step, its_step in zip(ours.steps, theirs.steps, strict=False):
            if step.rng_before != step.rng_after and step.rng_after != its_step.rng_after:
                return Flaw("draws", f"draws different random numbers in step {step.step}")
    return None


def _other_steps(reference: Trace, other: Trace) -> Flaw | None:
    """Whether one Run leaves out an optimizer's step, as a loss scaler does after an overflow."""
    for ours, theirs in zip(reference.ranks, other.ranks, strict=False):
        for step, its in zip(ours.steps, theirs.steps, strict=False):
            if step.optimizer_stepped != its.optimizer_stepped:
                does = "makes" if its.optimizer_stepped else "leaves out"
                return Flaw("steps", f"{does} the optimizer's step of step {step.step}")
    return None


def _draws(rank: RankTrace) -> dict[str, list[DrawEvent | UnseenDraws]]:
    """A rank's draws by the name of the generator, each in order."""
    found: dict[str, list[DrawEvent | UnseenDraws]] = {}
    for event in ledger(rank):
        if isinstance(event, DrawEvent | UnseenDraws):
            found.setdefault(event.generator, []).append(event)
    return found


def _states(event: DrawEvent | UnseenDraws) -> tuple[str, str]:
    # If only a change of the state is known, the program may have seeded the generator, whose
    # state before then depends on nothing.
    known = isinstance(event, DrawEvent) and event.operator
    return event.before if known else "", event.after


def _by(event: DrawEvent | UnseenDraws | None) -> str:
    if not isinstance(event, DrawEvent):
        return f" from {event.generator}" if event is not None else ""
    return f" at {event.line}" if event.line else f" from {event.generator}"


def other_inputs(
    reference: Trace, other: Trace, depends: Collection[TensorId] = ()
) -> Iterator[Flaw]:
    """The inputs of the model in which two Runs of a program differ by more than a cast explains.

    Integers must be equal.  Inputs of which only sketches were recorded are not compared.  Of a
    program without micro-batches, norms and projections of the inputs are compared.
    """
    for id in reference.ids():
        if id.kind != "input" or id in depends:
            continue
        here, there = _first(reference, id), _first(other, id)
        if here is None or there is None:
            continue
        if not _alike(here, there):
            when = f"step {id.step}, micro-batch {id.microbatch}"
            yield Flaw("input", f"gets different data: input {id.path} of its model in {when}", id)
    if any(id.kind == "input" for id in reference.ids()):
        return
    alike = reference.manifest.dtype == other.manifest.dtype
    narrow = rung_named(reference.manifest.dtype)
    limit = (LOW_ROUNDINGS if narrow.low else ROUNDINGS) * narrow.epsilon
    for ours, theirs in zip(reference.ranks, other.ranks, strict=False):
        for mine, its in zip(ours.inputs, theirs.inputs, strict=False):
            if not _alike_in_measures(mine, its, limit, exact=alike):
                yield Flaw("input", f"gets different data in step {mine.step}")


def _alike_in_measures(here: InputEvent, there: InputEvent, limit: float, exact: bool) -> bool:
    """Whether the inputs of two calls are equal up to `limit`, a share of their norms.

    What has no measures is compared by its hash, if the inputs have one dtype (`exact`).
    """
    count = len(here.hashes)
    if count != len(there.hashes):
        return False
    if not len(here.measures) == len(there.measures) == count:
        return not exact or here.hashes == there.hashes
    for number, (mine, its) in enumerate(zip(here.measures, there.measures, strict=True)):
        if mine is None or its is None:
            if here.hashes[number] != there.hashes[number]:
                return False
        elif any(abs(a - b) > limit * mine[0] for a, b in zip(mine, its, strict=True)):
            return False
    return True


def _first(trace: Trace, id: TensorId) -> torch.Tensor | None:
    holders = trace.holders(id)
    if not holders or not holders[0][1].key:
        return None
    rank, event = holders[0]
    return trace.load(rank.rank, event)


def _alike(here: torch.Tensor, there: torch.Tensor) -> bool:
    if here.shape != there.shape or here.is_floating_point() != there.is_floating_point():
        return False
    if not here.is_floating_point():
        return torch.equal(here, there)
    low = torch.finfo(here.dtype).bits < 32
    return _roundings(here, there) <= (LOW_ROUNDINGS if low else ROUNDINGS)


def _roundings(here: torch.Tensor, there: torch.Tensor) -> float:
    """The difference of two tensors as a multiple of the rounding of `here`, by their norms."""
    mine, its = here.to(torch.float64), there.to(torch.float64)
    if torch.equal(mine.isfinite(), its.isfinite()):
        mine, its = (each.nan_to_num(0.0, 0.0, 0.0) for each in (mine, its))
    size, apart = float(mine.norm()), float((mine - its).norm())
    if apart == 0.0:
        return 0.0
    limit = torch.finfo(here.dtype).eps * size
    return apart / limit if limit and math.isfinite(apart) else math.inf


def differs_from_itself(reference: Trace, repeated: Trace) -> Flaw | None:
    """The first flaw of a repetition of a Run, in which everything must be the same again.

    Tensors may differ by the order of summation in threads, so a small difference is no flaw.
    """
    found = flaw_of(reference, repeated)
    if found is not None:
        return found
    for id in reference.ids():
        here, there = _first(reference, id), _first(repeated, id)
        if here is None or there is None or reference.holders(id)[0][1].hash == _hash(repeated, id):
            continue
        real = here.is_floating_point() and here.shape == there.shape
        if not real or _roundings(here, there) > SELF_ROUNDINGS:
            return Flaw("value", f"computes another {id.kind} of {id.path} in step {id.step}", id)
    return None


def _hash(trace: Trace, id: TensorId) -> str:
    return trace.holders(id)[0][1].hash
