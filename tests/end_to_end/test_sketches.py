"""Verdicts and reports with recorded sketches equal those with full recording."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from pytest_trainsafe.config.settings import Recording, Settings
from pytest_trainsafe.judges.compare.ladder.ladder import climb
from pytest_trainsafe.judges.compare.text.message import message_of
from pytest_trainsafe.reference_models.bugs import find
from pytest_trainsafe.reference_models.corpus import planted
from pytest_trainsafe.runs.session import Session

SETTINGS = Settings(max_world_size=4, localize=0.0)

#: Their first wrong tensors: an activation, one rank's gradient, an update, a tensor of a later
#: step, and one before the first step.
#: `bench_bugs.py --record sketch` judges all bugs at all Points that trigger them.
BUGS = [
    find(name)
    for name in (
        "tp-embedding-mask",
        "sp-layernorm-grads",
        "zero-gather-lost",
        "fp8-stale-weight",
        "pp-stage-division",
    )
]


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory):
    session = Session(SETTINGS, tmp_path_factory.mktemp("sketches"))
    yield session
    session.close()


def report(session: Session, case, record: Recording) -> str:
    """The report of a case without its rerun line, which names the recording mode."""
    case = replace(case, settings=SETTINGS._replace(record=record))
    candidate = session.candidate(case)
    text = message_of(climb(candidate, session.reference(case), [], []))
    session.discard(candidate)
    return re.sub(r"^ +rerun.*$", "", text, flags=re.MULTILINE)


@pytest.mark.slow
@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_a_planted_bug_has_the_same_report_with_sketches_as_with_full_recording(
    session: Session, bug
) -> None:
    case = next(case for case in planted(bug, SETTINGS) if bug.triggers(case.point))

    sketched = report(session, case, "sketch")
    assert "starts at" in sketched
    assert sketched == report(session, case, "full")


def test_a_correct_candidate_passes_with_sketches(session: Session) -> None:
    bug = BUGS[0]
    case = next(case for case in planted(bug, SETTINGS) if case.point.size("cp") == 2)
    clean = replace(case, candidate_arguments=case.arguments)

    assert report(session, clean, "sketch") == ""
