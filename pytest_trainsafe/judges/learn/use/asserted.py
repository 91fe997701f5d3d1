"""Judges what is passed to `assert_invariants`: a fixture, a recorded trace or an observation."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from pytest_trainsafe.core.usage import shown
from pytest_trainsafe.errors import ArgumentTypeError
from pytest_trainsafe.judges.contract import FindingsJudgement
from pytest_trainsafe.judges.learn import JUDGE
from pytest_trainsafe.judges.learn.registry import relations
from pytest_trainsafe.judges.learn.run import ObservedRun
from pytest_trainsafe.judges.learn.use.deploy import load_packs, observation_of, observed_spec
from pytest_trainsafe.judges.learn.use.judged import judge_packs, judge_trace
from pytest_trainsafe.runs.traces import Traces
from pytest_trainsafe.trace.reader import Trace


@dataclass(frozen=True, slots=True)
class GivenJudgement(FindingsJudgement):
    """The judgement of `assert_invariants`."""

    text: ClassVar[str] = "pytest_trainsafe.judges.learn.text"


def judge_given(given: Any, names: Sequence[str], accept: Collection[str]) -> GivenJudgement:
    """Judges `given` by the packs `names`.

    Raises ArgumentTypeError if `given` is nothing that can be judged, TraceError if the trace has
    no observed calls, and PackError if a pack cannot be read.
    """
    if isinstance(given, Traces):
        return _judge_fixture(given, names, accept)
    known = relations()
    packs = load_packs(names, Path.cwd(), known)
    if isinstance(given, (Trace, str, os.PathLike)):
        trace = given if isinstance(given, Trace) else Trace.open(os.fspath(given))
        what = f"{trace.manifest.program} at {trace.point}"
        return _of(what, judge_trace(trace, packs, known, accept))
    if hasattr(given, "table") and hasattr(given, "unseen"):
        run = ObservedRun("", [given.table])
        judgement = judge_packs(run, packs, known, accept=accept, unseen=list(given.unseen))
        return _of("the observed run", judgement)
    raise ArgumentTypeError(
        f"assert_invariants was given {shown(given)}; pass the fixture candidate_trace, a recorded "
        "trace, the directory of a trace, or the observation that observe() yields"
    )


def _judge_fixture(given: Traces, names: Sequence[str], accept: Collection[str]) -> GivenJudgement:
    case = given.case
    known = relations(case.settings.relations)
    packs = load_packs(names, Path(case.settings.root), known)
    spec = observed_spec(case, observation_of(packs, known), given.role)
    trace = given.runs.get(spec).trace
    accepted = {*accept, *case.settings.accept}
    judgement = judge_trace(trace, packs, known, accepted)
    return _of(f"{case.program.path} at {spec.point}", judgement)


def _of(what: str, judgement: FindingsJudgement) -> GivenJudgement:
    return GivenJudgement(JUDGE, judgement.findings, judgement.not_compared, what=what)
