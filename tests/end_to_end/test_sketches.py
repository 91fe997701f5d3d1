"""With sketches the verdicts, and the reports, are those of full recording."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from pytest_trainsafe.config.settings import Recording, Settings
from pytest_trainsafe.judge.ladder import climb
from pytest_trainsafe.reference_models.bugs import find
from pytest_trainsafe.reference_models.corpus import planted
from pytest_trainsafe.report.message import message_of
from pytest_trainsafe.runs.session import Session

SETTINGS = Settings(max_world_size=4, localize=0.0)

#: Seen first in an activation, a gradient of one rank, an update, a later step, and before any.
#: `bench_bugs.py --record sketch` judges all of them, wherever they act.
SOME = [
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
    """What is said of a case, without what depends on which tensors were kept."""
    case = replace(case, settings=replace(SETTINGS, record=record))
    candidate = session.candidate(case)
    text = message_of(climb(candidate, session.reference(case), [], []))
    session.discard(candidate)
    return re.sub(r"^ +rerun.*$", "", text, flags=re.MULTILINE)


@pytest.mark.slow
@pytest.mark.parametrize("bug", SOME, ids=lambda bug: bug.name)
def test_a_planted_bug_is_told_as_in_full(session: Session, bug) -> None:
    case = next(case for case in planted(bug, SETTINGS) if bug.triggers(case.point))

    told = report(session, case, "sketch")
    assert "starts at" in told
    assert told == report(session, case, "full")


def test_a_clean_point_passes(session: Session) -> None:
    bug = SOME[0]
    case = next(case for case in planted(bug, SETTINGS) if case.point.size("cp") == 2)
    clean = replace(case, candidate_arguments=case.arguments)

    assert report(session, clean, "sketch") == ""
