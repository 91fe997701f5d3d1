"""Entries of the catalogue of DeepSpeed bugs can be run, and planted bugs are found."""

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
    """The marker of a test of a planted bug, at the Point of its entry: `triggers` or `silent`."""
    bug = deepspeed_bugs.find(name)
    point = {axis: [value] for axis, value in getattr(bug, where).items()}
    return pytest.mark.trainsafe(PROGRAMS[bug.program], candidate_args={"bug": name}, **point)


def judge(name, candidate, reference):
    """Expect a failure that starts at the tensor of the entry; return the report on one line."""
    bug = deepspeed_bugs.find(name)
    with pytest.raises(TrainsafeFailure) as failure:
        assert_trainsafe(candidate, reference)
    text = " ".join(str(failure.value).split())
    assert f"starts at {bug.tensor} · {bug.kind} · step {bug.step}" in text
    return text


@pytest.mark.parametrize("where", ["triggers", "silent"])
@pytest.mark.parametrize("bug", deepspeed_bugs.BUGS, ids=lambda bug: bug.name)
def test_the_points_of_an_entry_are_valid_for_its_program(bug, where):
    axes = {axis: [value] for axis, value in getattr(bug, where).items()}
    settings = Settings(max_world_size=4)
    (cell,) = cells(read_marker([PROGRAMS[bug.program]], axes), settings, lambda *_: None)
    assert cell.invalid is None


def test_every_entry_has_a_unique_name_and_a_release_or_a_planted_version():
    from pytest_trainsafe.reference_models.deepspeed_bugs.plants import PLANTS

    planted_ones = {bug.name for bug in deepspeed_bugs.BUGS if bug.planted}
    assert planted_ones == set(PLANTS)
    assert all(bug.release or bug.planted for bug in deepspeed_bugs.BUGS)
    assert len(set(deepspeed_bugs.NAMES)) == len(deepspeed_bugs.BUGS)


def test_an_unknown_bug_is_refused_with_the_known_names():
    with pytest.raises(ValueError, match=r"no DeepSpeed bug 'ds-1'.*ds-1801"):
        deepspeed_bugs.find("ds-1")


@pytest.mark.slow
@planted("ds-8382", "triggers")
def test_unreduced_gradients_are_reported_as_missing_micro_batches(
    candidate_trace, reference_trace, localizing
):
    pytest.importorskip("deepspeed")
    text = judge("ds-8382", candidate_trace, reference_trace)
    assert "micro-batches 2, 3 of 4 (counted from 0) are missing from the sum" in text
    assert "the gradient reduction of all 12 parameters is wrong" in text


@pytest.mark.slow
@planted("ds-8382", "silent")
def test_the_bug_of_unreduced_gradients_is_silent_with_contiguous_buffers(
    candidate_trace, reference_trace
):
    pytest.importorskip("deepspeed")
    assert_trainsafe(candidate_trace, reference_trace)


@pytest.mark.slow
@planted("ds-7967", "triggers")
def test_gradients_lost_with_the_optimizer_on_the_cpu_are_missing_micro_batches(
    candidate_trace, reference_trace
):
    pytest.importorskip("deepspeed")
    text = judge("ds-7967", candidate_trace, reference_trace)
    assert "micro-batches 1, 2, 5, 6 of 8 (counted from 0) are missing from the sum" in text


@pytest.mark.slow
@planted("ds-7985", "triggers")
def test_a_micro_batch_added_after_the_reduction_is_reported_as_missing(
    candidate_trace, reference_trace
):
    pytest.importorskip("deepspeed")
    text = judge("ds-7985", candidate_trace, reference_trace)
    assert "micro-batch 3 of 4 (counted from 0) is missing from the sum" in text


@pytest.mark.slow
@planted("ds-5104", "triggers")
def test_an_additional_optimizer_step_is_found_in_the_first_step(candidate_trace, reference_trace):
    pytest.importorskip("deepspeed")
    text = judge("ds-5104", candidate_trace, reference_trace)
    assert "then enter.weight.step · optimizer_state · step 0 the value is 2 times" in text
    assert "13 of 13 main gradients" in text


@pytest.mark.slow
@planted("ds-5150", "triggers")
def test_clipping_that_scales_gradients_up_is_reported_as_a_wrong_factor(
    candidate_trace, reference_trace
):
    pytest.importorskip("deepspeed")
    text = judge("ds-5150", candidate_trace, reference_trace)
    assert "a factor is wrong, missing, or applied twice" in text
