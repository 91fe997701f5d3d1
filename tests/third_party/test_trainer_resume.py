"""transformers' Trainer resumes from its own checkpoint, and what it loses is named."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers", reason="pip install transformers accelerate")
pytest.importorskip("accelerate", reason="pip install transformers accelerate")

from pytest_trainsafe import TrainsafeFailure, assert_resumable
from pytest_trainsafe.core.finding import Finding
from tests.support.third_party.callbacks import trainer_resumed

#: What is not restored, and the codes of the findings.  A loader that skips no batch is made after
#: the generators are restored, and draws a seed.
FAULTS = [
    ("position", {"resume:data_order", "resume:rng"}),
    ("optimizer", {"resume:moment", "resume:step_counter", "resume:lr_schedule"}),
    ("rng", {"resume:rng"}),
]


def findings_of(fault: str, folder: Path) -> Sequence[Finding]:
    # The Runs are made in this process: importing transformers takes longer than all of them.
    from tests.support.replay.in_process import traces_here

    @functools.wraps(trainer_resumed.train)
    def train(ctx: Any) -> None:
        trainer_resumed.train(ctx, fault=fault)

    del train.__wrapped__
    try:
        assert_resumable(traces_here(train, folder, program=trainer_resumed.train), at_step=3)
    except TrainsafeFailure as failure:
        return failure.findings
    return []


@pytest.mark.filterwarnings("ignore")
def test_the_trainer_goes_on_as_if_it_was_never_interrupted(tmp_path):
    assert findings_of("", tmp_path) == []


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("fault", "codes"), FAULTS)
def test_what_the_trainer_does_not_restore_is_named(tmp_path, fault, codes):
    assert {each.check for each in findings_of(fault, tmp_path)} == codes


@pytest.mark.filterwarnings("ignore")
@pytest.mark.trainsafe(
    "tests.support.third_party.callbacks.trainer_resumed:train", dp=2, dtype=["float32"]
)
def test_the_trainer_resumes_on_two_ranks(candidate_trace):
    assert_resumable(candidate_trace, at_step=3)
