"""A failed test's report names the code at fault, or says why it was not localised."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_trainsafe import assert_trainsafe
from pytest_trainsafe.assertions import TrainsafeFailure
from pytest_trainsafe.reference_models import bugs, gpt
from tests.support.localize import pipeline_program
from tests.support.localize.stack_program import train

pytestmark = pytest.mark.usefixtures("localizing")


def failure(candidate, reference):
    with pytest.raises(TrainsafeFailure) as raised:
        assert_trainsafe(candidate, reference)
    return " ".join(str(raised.value).split())


@pytest.mark.trainsafe(train, tp=2, candidate_args={"bug": "between"}, dtype=["float64"])
def test_the_report_names_module_axis_and_line(candidate_trace, reference_trace, published):
    text = failure(candidate_trace, reference_trace)

    assert "faulty Block.forward of blocks.1, outside its submodules: given equal outputs" in text
    assert "axis tp: at tp=1 the fault is gone" in text
    assert "stack_program.py:" in text.partition("look at")[2]
    summary = published()
    assert summary["seconds"]["localize"] > 0


@pytest.mark.trainsafe(train, tp=2, candidate_args={"bug": "between"}, dtype=["float64"])
def test_the_report_says_that_the_process_has_used_its_time_for_localisation(
    candidate_trace, reference_trace, localizing
):
    localizing.take(6000.0)
    text = failure(candidate_trace, reference_trace)

    assert "starts at blocks.1.output" in text
    assert (
        "not localised localisation took 6000 s in this process, and the limit is 10 times" in text
    )
    assert "faulty" not in text


@pytest.mark.trainsafe(train, dp=2, candidate_args={"bug": "norm"}, dtype=["float64"])
def test_a_localisation_stopped_by_the_time_limit_still_names_a_line(
    candidate_trace, reference_trace, localizing
):
    localizing.take(6000.0 - 1e-6)
    text = failure(candidate_trace, reference_trace)

    assert "not localised stopped at the time limit after" in text
    assert "stack_program.py:" in text.partition("look at")[2]


@pytest.mark.trainsafe(train, tp=2, candidate_args={"bug": "between"}, dtype=["float64"])
def test_a_second_failure_of_a_family_refers_to_the_first_localisation(
    candidate_trace, reference_trace, localizing
):
    first = failure(candidate_trace, reference_trace)
    spent = localizing.spent
    again = failure(candidate_trace, reference_trace)

    assert f"localised in {spent:.1f} s" in first
    assert "localised not repeated: " in again
    known = "starts at the same tensor; found there: Block.forward of blocks.1, outside its"
    assert known in again
    assert "as in that test" in again
    first_line, same = (text.partition("look at ")[2].partition(" (")[0] for text in (first, again))
    assert first_line == same != ""
    assert localizing.spent == spent


@pytest.mark.trainsafe(train, dp=2, candidate_args={"bug": "unreduced"}, dtype=["float64"])
def test_the_report_says_that_no_activations_were_recorded(
    trainsafe, candidate_trace, reference_trace
):
    settings = candidate_trace.case.settings._replace(record_kinds=("main_grad",))
    for traces in (candidate_trace, reference_trace):
        traces.case = replace(trainsafe, settings=settings)
    text = failure(candidate_trace, reference_trace)

    assert "not localised no activations were recorded" in text


@pytest.mark.trainsafe(
    pipeline_program.train, pp=2, candidate_args={"bug": "handed back"}, dtype=["float64"]
)
def test_the_pp_rank_that_receives_a_wrong_tensor_is_named(candidate_trace, reference_trace):
    text = failure(candidate_trace, reference_trace)

    assert "sends to rank 0 of pp is wrong, outside of the model" in text
    assert "axis pp: at pp=1 the fault is gone" in text
    assert "pipeline_program.py:" in text.partition("look at")[2]


TIED = {**bugs.find("zero-tied-embedding").arguments, "hidden": 32}


@pytest.mark.trainsafe(
    gpt.train,
    pp=2,
    dp=2,
    zero=1,
    args=TIED,
    candidate_args={"bug": "zero-tied-embedding"},
    dtype=["float64"],
)
def test_a_wrong_reduction_of_a_tied_embedding_is_localised_with_its_collectives(
    candidate_trace, reference_trace, published
):
    text = failure(candidate_trace, reference_trace)

    assert "the gradient reduction of embedding.word_embeddings.weight is wrong" in text
    # Each rank of dp updates flat shares of the parameters.
    assert "agrees the optimizer's step: given equal generated gradients" in text
    assert "reduced by reduce_scatter_tensor(SUM) over dp at" in text
    assert "all_reduce(SUM) over pp at" in text
    assert ", called at" in text.partition("all_reduce(SUM) over pp at")[2].partition("axis")[0]
    summary = published()
    assert summary["faults"] == [["reduction", "embedding.word_embeddings.weight"]]


SHALLOW = {"layers": 3, "hidden": 32}


@pytest.mark.trainsafe(
    gpt.train, pp=2, args=SHALLOW, candidate_args={"bug": "pp-stage-division"}, dtype=["float64"]
)
def test_a_layer_on_no_stage_is_blamed_on_the_stage_division(
    candidate_trace, reference_trace, published
):
    text = failure(candidate_trace, reference_trace)

    assert "faulty the initial parameters, before the first step: no rank holds" in text
    assert "no rank holds decoder.layers.2; the division into stages leaves it out" in text
    assert "in decoder.layers, rank 0 of pp has 0; rank 1 of pp has 1" in text
    summary = published()
    assert summary["faults"] == [["initial", "decoder.layers.2"]]


@pytest.mark.trainsafe(train, tp=2, candidate_args={"bug": "start"}, dtype=["float64"])
def test_a_parameter_with_a_wrong_initial_value_is_named(candidate_trace, reference_trace):
    text = failure(candidate_trace, reference_trace)

    assert "the values of blocks.1.down.bias differ from the reference's" in text
