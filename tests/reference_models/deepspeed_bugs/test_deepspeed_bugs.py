"""The catalogue of DeepSpeed's bugs says what can be run, and what is planted is found."""

from __future__ import annotations

import pytest

from pytest_trainsafe import assert_trainsafe
from pytest_trainsafe.assertions import TrainsafeFailure
from pytest_trainsafe.config.settings import Settings
from pytest_trainsafe.reference_models import deepspeed_bugs
from pytest_trainsafe.reference_models.deepspeed_bugs.programs import (
    small as program,
)
from pytest_trainsafe.reference_models.deepspeed_bugs.programs import (
    tensor_parallel,
)
from pytest_trainsafe.sweep.marker import read_marker
from pytest_trainsafe.sweep.product import cells

PROGRAMS = {"small": program.train, "tensor_parallel": tensor_parallel.train}


def planted(name, where):
    """A marker for a test in which a bug is planted, at the Point that it triggers or the other."""
    bug = deepspeed_bugs.find(name)
    point = {axis: [value] for axis, value in getattr(bug, where).items()}
    return pytest.mark.trainsafe(PROGRAMS[bug.program], candidate_args={"bug": name}, **point)


def judge(name, candidate, reference):
    """Expect a failure that starts where the entry says; the report, on one line."""
    bug = deepspeed_bugs.find(name)
    with pytest.raises(TrainsafeFailure) as failure:
        assert_trainsafe(candidate, reference)
    text = " ".join(str(failure.value).split())
    assert f"starts at {bug.tensor} · {bug.kind} · step {bug.step}" in text
    return text


@pytest.mark.parametrize("where", ["triggers", "silent"])
@pytest.mark.parametrize("bug", deepspeed_bugs.BUGS, ids=lambda bug: bug.name)
def test_an_entry_names_points_that_its_program_has(bug, where):
    axes = {axis: [value] for axis, value in getattr(bug, where).items()}
    settings = Settings(max_world_size=4)
    (cell,) = cells(read_marker([PROGRAMS[bug.program]], axes), settings, lambda *_: None)
    assert cell.invalid is None


def test_every_entry_can_be_shown():
    from pytest_trainsafe.reference_models.deepspeed_bugs.plants import PLANTS

    planted_ones = {bug.name for bug in deepspeed_bugs.BUGS if bug.planted}
    assert planted_ones == set(PLANTS)
    assert all(bug.release or bug.planted for bug in deepspeed_bugs.BUGS)
    assert len(set(deepspeed_bugs.NAMES)) == len(deepspeed_bugs.BUGS)


def test_an_unknown_bug_is_refused_with_the_names():
    with pytest.raises(ValueError, match=r"no DeepSpeed bug 'ds-1'.*ds-1801"):
        deepspeed_bugs.find("ds-1")


@pytest.mark.slow
@planted("ds-8382", "triggers")
def test_gradients_that_are_not_reduced_lack_other_ranks_micro_batches(
    candidate_trace, reference_trace, localizing
):
    pytest.importorskip("deepspeed")
    text = judge("ds-8382", candidate_trace, reference_trace)
    assert "micro-batches 2, 3 of 4 (counted from 0) are missing from the sum" in text
    assert "the gradient reduction of all 12 parameters is wrong" in text


@pytest.mark.slow
@planted("ds-8382", "silent")
def test_the_unreduced_gradients_are_silent_with_contiguous_buffers(
    candidate_trace, reference_trace
):
    pytest.importorskip("deepspeed")
    assert_trainsafe(candidate_trace, reference_trace)


@pytest.mark.slow
@planted("ds-7967", "triggers")
def test_gradients_lost_on_the_cpu_are_micro_batches_that_are_missing(
    candidate_trace, reference_trace
):
    pytest.importorskip("deepspeed")
    text = judge("ds-7967", candidate_trace, reference_trace)
    assert "micro-batches 1, 2, 5, 6 of 8 (counted from 0) are missing from the sum" in text


@pytest.mark.slow
@planted("ds-7985", "triggers")
def test_a_micro_batch_added_after_the_reduction_is_missing_from_other_ranks(
    candidate_trace, reference_trace
):
    pytest.importorskip("deepspeed")
    text = judge("ds-7985", candidate_trace, reference_trace)
    assert "micro-batch 3 of 4 (counted from 0) is missing from the sum" in text


@pytest.mark.slow
@planted("ds-5104", "triggers")
def test_a_step_too_many_shows_in_the_first_update(candidate_trace, reference_trace):
    pytest.importorskip("deepspeed")
    text = judge("ds-5104", candidate_trace, reference_trace)
    assert "then enter.weight.step · optimizer_state · step 0 the value is 2 times" in text
    assert "13 of 13 main gradients" in text


@pytest.mark.slow
@planted("ds-5150", "triggers")
def test_clipping_upwards_makes_every_update_larger(candidate_trace, reference_trace):
    pytest.importorskip("deepspeed")
    text = judge("ds-5150", candidate_trace, reference_trace)
    assert "a factor is wrong, missing, or applied twice" in text
