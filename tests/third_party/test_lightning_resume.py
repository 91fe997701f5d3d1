"""A Lightning training resumes from Lightning's own checkpoint, and what it loses is named."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("lightning", reason="pip install lightning")

from pytest_trainsafe import TrainsafeFailure, assert_resumable
from pytest_trainsafe.core.finding import Finding
from tests.support.third_party.callbacks import lightning_resumed

#: What is not restored, the code of the finding, and words of its message.
FAULTS = [
    ("position", "data_order", "step 4, micro-batch 0 of rank 0 reads the batch that the"),
    ("buffer", "model", "on rank 0 scale is 1, not"),
    ("moments", "moment", "net.0.weight.exp_avg is absent"),
    ("schedule", "lr_schedule", "on rank 0 group 0: lr is 0.001, not 0.0001"),
    ("rng", "rng", "torch cpu of rank 0"),
    ("average", "average", "a dict with the names of the weights"),
]


def findings_of(fault: str, folder: Path) -> Sequence[Finding]:
    # The Runs are made in this process: importing Lightning takes longer than all of them.
    from tests.support.replay.in_process import traces_here

    @functools.wraps(lightning_resumed.train)
    def train(ctx: Any) -> None:
        lightning_resumed.train(ctx, fault)

    del train.__wrapped__
    try:
        assert_resumable(traces_here(train, folder, program=lightning_resumed.train), at_step=4)
    except TrainsafeFailure as failure:
        return failure.findings
    return []


@pytest.mark.filterwarnings("ignore")
def test_a_training_whose_checkpoint_has_everything_has_no_finding(tmp_path):
    assert findings_of("", tmp_path) == []


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("fault", "code", "words"), FAULTS)
def test_what_the_checkpoint_of_lightning_loses_is_named(tmp_path, fault, code, words):
    found = findings_of(fault, tmp_path)

    [finding] = [each for each in found if each.check == f"resume:{code}"]
    assert words in finding.message


@pytest.mark.trainsafe(
    "tests.support.third_party.callbacks.lightning_resumed:train", dp=2, dtype=["float32"]
)
def test_lightning_resumes_on_two_ranks(candidate_trace):
    assert_resumable(candidate_trace, at_step=4)
