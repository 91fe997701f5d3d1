"""A report names what was not restored, and nothing that only follows from it."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from pytest_trainsafe import TrainsafeFailure, assert_resumable
from pytest_trainsafe.core.finding import Finding
from tests.support.replay import resume_cause_programs as programs
from tests.support.replay.in_process import traces_here
from tests.support.replay.resume_cause_programs import Program

#: A program, what it does not restore, the codes of the findings, and words of the last one.
FAULTS: list[tuple[Program, str, list[str], str]] = [
    (programs.grows_its_batch, "size", ["data_order"], "reads a batch that the uninterrupted"),
    (programs.stays_in_evaluation_mode, "mode", ["unknown"], "no difference in a recorded state"),
    (programs.seeds_its_examples, "position", ["data_order"], "is seeded with 0, not 3, before"),
    (programs.seeds_numpy_for_its_examples, "position", ["data_order"], "reads in step 0"),
    (programs.seeds_python_for_its_examples, "position", ["data_order"], "reads in step 0"),
    (programs.seeds_its_dropout, "count", ["rng"], "torch cpu of rank 0 is seeded with 0, not 3"),
    (programs.repeats_its_first_epoch, "start", ["rng"], "draws behind: it continues from before"),
    (
        programs.draws_after_restoring,
        "order",
        ["rng"],
        "is restored, and then used differently: the resumed training draws uniform (3) at ",
    ),
    (
        programs.sets_its_learning_rate,
        "count",
        ["lr_schedule"],
        "group 0: lr is 0.1, not 0.025, at the end of step 3",
    ),
    (
        programs.halves_its_learning_rate,
        "count",
        ["lr_schedule"],
        "group 0: lr is 0.1, not 0.05, at the end of step 3",
    ),
    (
        programs.carries_a_hidden_state,
        "hidden",
        ["unknown"],
        "reads the right input.0, but input.1 differs",
    ),
    (
        programs.carries_a_hidden_state,
        "position",
        ["data_order"],
        "reads the right input.1, but input.0 is that of step 0, micro-batch 0",
    ),
    (programs.reads_what_its_weights_choose, "weights", ["model"], "0.bias has different values"),
    (programs.draws_as_its_weights_choose, "weights", ["model"], "0.bias has different values"),
    (programs.reads_what_its_weights_choose, "optimizer", ["moment"], "momentum_buffer is absent"),
    (programs.saves_no_learning_rate, "weights", ["model"], "0.bias has different values"),
    (
        programs.adds_a_parameter_group,
        "groups",
        ["lr_schedule"],
        "a parameter group is not restored: on rank 0 group 1 of the optimizer is missing",
    ),
]


def findings_of(program: Program, lost: str, folder: Path) -> Sequence[Finding]:
    """The findings on a program that is resumed after three steps and does not restore `lost`."""

    @functools.wraps(program)
    def train(ctx: Any) -> None:
        program(ctx, lost)

    del train.__wrapped__
    try:
        assert_resumable(traces_here(train, folder, program=program), at_step=3)
    except TrainsafeFailure as failure:
        return failure.findings
    return []


@pytest.mark.parametrize(("program", "lost", "codes", "words"), FAULTS)
def test_only_the_cause_of_a_difference_is_reported(tmp_path, program, lost, codes, words):
    found = findings_of(program, lost, tmp_path)

    assert [each.check for each in found] == [f"resume:{code}" for code in codes], found
    assert words in found[-1].message
    assert {each.verdict for each in found} == {"fail"}


@pytest.mark.parametrize("program", dict.fromkeys(program for program, _, _, _ in FAULTS))
def test_a_program_that_restores_all_of_it_has_no_finding(tmp_path, program):
    assert findings_of(program, "", tmp_path) == []


def test_a_restored_stream_that_is_used_otherwise_without_effect_is_inconclusive(tmp_path):
    [finding] = findings_of(programs.logs_after_restoring, "calls", tmp_path)

    assert (finding.check, finding.verdict) == ("resume:rng", "inconclusive")
    assert "torch cpu of rank 0 is restored, and then used differently: uniform (2)" in (
        finding.message
    )
    assert "no result of 5 steps differs because of it" in finding.message


def test_numbers_that_are_logged_alike_have_no_finding(tmp_path):
    assert findings_of(programs.logs_after_restoring, "", tmp_path) == []
