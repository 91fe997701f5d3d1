"""Judges many small programs as `assert_trainsafe` does, and returns a row for each.

A trial is a program at a Point with a fault planted in the candidate, or its clean twin.
"""

from __future__ import annotations

import tempfile
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from _judged import Row

from pytest_trainsafe.assertions import Loosen
from pytest_trainsafe.config.settings import Settings
from pytest_trainsafe.core.point import Point
from pytest_trainsafe.judges.compare.judgement import ladder_of
from pytest_trainsafe.judges.joint import judge_case
from pytest_trainsafe.judges.joint_text import report_of
from pytest_trainsafe.launch import GroupFailure
from pytest_trainsafe.runs.session import Session
from pytest_trainsafe.sweep.marker import Declaration
from pytest_trainsafe.sweep.product import cell_of
from pytest_trainsafe.sweep.program import resolve

#: The number of trials that one session judges; it keeps their references until it is closed.
TRIALS_OF_A_SESSION = 20


@dataclass(frozen=True)
class Trial:
    """One judgement: the import path of the program, its Point, arguments, fault, and settings."""

    name: str
    program: str
    point: Mapping[str, Any]
    fault: str = ""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    dtypes: tuple[str, ...] = ()
    accept: tuple[str, ...] = ()
    loosen: tuple[Mapping[str, Any], ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    localize: float = 0.0


def judged(trials: Sequence[Trial]) -> Iterator[Row]:
    """Yields a row for each trial, in order: verdict, report, notes, faults and seconds.

    The verdict is "error" if the ranks of a Run did not finish, or if judging raised.
    """
    for first in range(0, len(trials), TRIALS_OF_A_SESSION):
        with tempfile.TemporaryDirectory(prefix="trainsafe-trials-") as temporary:
            session = Session(Settings(device="cpu"), Path(temporary))
            try:
                for trial in trials[first : first + TRIALS_OF_A_SESSION]:
                    yield _judged(session, trial)
            finally:
                session.close()


def _judged(session: Session, trial: Trial) -> Row:
    settings = Settings(
        device="cpu",
        localize=trial.localize,
        accept=trial.accept,
        dtypes=trial.dtypes,
        **trial.settings,
    )
    declaration = Declaration(
        program=resolve(trial.program),
        args={**trial.arguments, "fault": ""},
        candidate_args={"fault": trial.fault},
    )
    case = cell_of(declaration, Point.of(**trial.point), settings, ()).case
    candidate, reference = session.candidate(case), session.reference(case)
    began = time.perf_counter()
    row: Row = {"trial": trial.name, "fault": trial.fault, "point": dict(trial.point)}
    try:
        joint = judge_case(candidate, reference, [Loosen(**each) for each in trial.loosen])
        row["verdict"] = joint.verdict
        row["report"] = report_of(joint) if joint.verdict != "pass" else ""
        row["checks"] = sorted({f.check for f in joint.findings})
        compared = ladder_of(joint.judgements)
        assert compared is not None
        row["notes"] = [text for each in joint.judgements for text in each.not_compared]
        row["rungs"] = [each.dtype for each in compared.rungs]
        row["worst"] = [round(each.comparison.worst, 4) for each in compared.rungs]
        row["look_at"] = compared.located.source if compared.located is not None else ""
        row["faults"] = list(compared.located.faults) if compared.located is not None else []
    except GroupFailure as failure:
        row |= {"verdict": "error", "report": str(failure)}
    except Exception:  # a row shows errors of the judge itself
        row |= {"verdict": "error", "report": traceback.format_exc()}
    finally:
        session.discard(candidate)
    return {**row, "seconds": round(time.perf_counter() - began, 1)}
