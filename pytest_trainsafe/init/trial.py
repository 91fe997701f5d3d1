"""Trains a program on one device, and again if that is cheap, to see what a test would see."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from msgspec import structs

from pytest_trainsafe.annotations.missing import HEAD, absent_file
from pytest_trainsafe.core.rungs.table import RECIPE, WIDEST
from pytest_trainsafe.core.tensor_id import INITIAL
from pytest_trainsafe.init.files import create
from pytest_trainsafe.judges.compare.same_computation import differs_from_itself
from pytest_trainsafe.launch import GroupFailure
from pytest_trainsafe.launch.failure import raised, reason
from pytest_trainsafe.runs.execution.run import Run
from pytest_trainsafe.runs.session import Session
from pytest_trainsafe.sweep.case import Case
from pytest_trainsafe.trace.reader import Trace

#: A program is trained again if its first training took at most this many seconds.
CHEAP = 20.0


@dataclass(frozen=True, slots=True)
class Trial:
    """What training a program on one device showed.

    `dtype` is float64, or float32 if the program cannot run in float64; `not_float64` then says
    why.  `flaw` says how a second training differed, "" for not at all, None if there was none.
    `seeded` is whether another seed gives other initial parameters, None if it was not tried.
    `repeat` is the number of the repetition under which the Run is known.  `made` is the annotation
    file that the program names and that was missing: it was made, without entries.
    """

    run: Run
    dtype: str
    not_float64: str = ""
    flaw: str | None = None
    seeded: bool | None = None
    repeat: int = 0
    made: Path | None = None

    @property
    def trace(self) -> Trace:
        """What the first training recorded."""
        return self.run.trace


def try_out(session: Session, case: Case) -> Trial:
    """Trains the program of `case` on one device.  Raises GroupFailure if it cannot be trained."""
    trial = _first(session, case)
    if trial.run.seconds["train"] > CHEAP:
        return trial
    again = _run(session, case, trial.dtype, trial.repeat + 1)
    flaw = differs_from_itself(trial.trace, again.trace)
    trial = replace(trial, flaw=flaw.what if flaw is not None else "")
    if "initialize" in trial.trace.ranks[0].note("used"):
        return trial
    other = _run(session, case, trial.dtype, trial.repeat, seed=case.settings.seed + 1)
    return replace(trial, seeded=_initial(trial.trace) != _initial(other.trace))


def _first(session: Session, case: Case) -> Trial:
    try:
        return _trained(session, case)
    except GroupFailure as failure:
        missing = _missing_file(failure)
        if missing is None or create(missing, HEAD):
            raise
    try:
        return _trained(session, case, repeat=1, made=missing)
    except GroupFailure:
        missing.unlink(missing_ok=True)
        raise


def _trained(session: Session, case: Case, repeat: int = 0, made: Path | None = None) -> Trial:
    try:
        return Trial(_run(session, case, WIDEST, repeat), WIDEST, repeat=repeat, made=made)
    except GroupFailure as failure:
        if _missing_file(failure) or not raised(failure.result):
            raise
        why = reason(failure.result)
    narrow = _run(session, case, RECIPE, repeat)  # raises the same if the dtype is not the cause
    return Trial(narrow, RECIPE, why, repeat=repeat, made=made)


def _run(session: Session, case: Case, dtype: str, repeat: int, seed: int | None = None) -> Run:
    traces = replace(session.reference(case), repeat=repeat)
    spec = traces.spec(dtype)
    return traces.runs.get(spec if seed is None else structs.replace(spec, seed=seed))


def _initial(trace: Trace) -> dict[str, str]:
    events = trace.ranks[0].tensors
    kinds = ("param", "buffer")
    return {
        id.path: event.hash
        for id, event in events.items()
        if id.step == INITIAL and id.kind in kinds
    }


def _missing_file(failure: GroupFailure) -> Path | None:
    """The annotation file that the program names and that is to be made; None for none."""
    first = failure.result.ranks[0]
    return absent_file(first.error_type, first.error)
