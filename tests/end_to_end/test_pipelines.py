"""Correct pipelines pass, whatever their schedule, their stages and the axes beside pp."""

import pytest

from pytest_trainsafe import assert_trainsafe
from pytest_trainsafe.reference_models import gpt, llama

#: A number of layers that no number of stages divides; what a reference has, too.
DEEP = {"layers": 5, "microbatches": 4, "clip": 0.5, "hidden": 32, "batch_size": 1}
TIED = {**DEEP, "tied": True}


@pytest.mark.trainsafe(gpt.train, pp=2, tp=2, sp=True, args=TIED)
def test_a_pipeline_of_tied_tensor_parallel_stages(candidate_trace, reference_trace):
    assert_trainsafe(candidate_trace, reference_trace)


@pytest.mark.trainsafe(gpt.train, pp=2, vpp=2, args=TIED, dtype=["float64"])
def test_an_interleaved_pipeline(candidate_trace, reference_trace):
    assert_trainsafe(candidate_trace, reference_trace)


@pytest.mark.slow
@pytest.mark.trainsafe(
    gpt.train,
    pp=2,
    vpp=[1, 2],
    schedule=["1f1b", "gpipe"],
    args=TIED,
    dtype=["float64"],
)
def test_every_schedule(candidate_trace, reference_trace):
    assert_trainsafe(candidate_trace, reference_trace)


@pytest.mark.slow
@pytest.mark.trainsafe(gpt.train, pp=4, tied=[False, True], args=DEEP, dtype=["float64"])
def test_four_stages(candidate_trace, reference_trace):
    assert_trainsafe(candidate_trace, reference_trace)


@pytest.mark.slow
@pytest.mark.trainsafe(gpt.train, pp=2, dp=2, cp=[1, 2], args=TIED, dtype=["bfloat16"])
def test_pipelines_beside_other_axes_in_bfloat16(candidate_trace, reference_trace):
    assert_trainsafe(candidate_trace, reference_trace)


@pytest.mark.slow
@pytest.mark.trainsafe(gpt.train, pp=2, vpp=2, recompute=True, args=TIED, dtype=["float64"])
def test_a_pipeline_that_recomputes(candidate_trace, reference_trace):
    assert_trainsafe(candidate_trace, reference_trace)


@pytest.mark.slow
@pytest.mark.trainsafe(llama.train, pp=2, tp=2, sp=True, vpp=[1, 2], args=DEEP, dtype=["float64"])
def test_a_pipeline_of_a_llama(candidate_trace, reference_trace):
    assert_trainsafe(candidate_trace, reference_trace)


@pytest.mark.slow
@pytest.mark.trainsafe(
    gpt.train,
    pp=2,
    vpp=[1, 2],
    schedule=["torch-1f1b", "torch-zero-bubble"],
    args=TIED,
    dtype=["float64"],
)
def test_schedules_of_torch(candidate_trace, reference_trace):
    assert_trainsafe(candidate_trace, reference_trace)
