"""A DeepSpeed training that never ends, or is refused, fails with the reason and the line."""

from __future__ import annotations

import deepspeed_programs
import pytest

from pytest_trainsafe.launch import GroupFailure
from pytest_trainsafe.reference_models.deepspeed_bugs import stuck

pytest.importorskip("deepspeed")

#: Far longer than any of these takes: none is ended by it.
TIMEOUT = 240


def at(name, sound=False):
    """The marker of a test in which a bug happens, or of the nearest training without it."""
    (bug,) = (each for each in stuck.STUCK if each.name == name)
    args = {"bug": name, "sound": sound}
    where = {**bug.where, "dtype": "float32"}
    return pytest.mark.trainsafe(stuck.train, candidate_args=args, timeout=TIMEOUT, **where)


def failure(traces):
    """The failure of a group that was ended before its time was over."""
    with pytest.raises(GroupFailure) as caught:
        traces.at("float32")
    assert caught.value.result.seconds < TIMEOUT / 2
    return caught.value


def first_line(traces):
    return str(failure(traces)).splitlines()[0]


DIFFERS = "collective mismatch: collective {} of the group of ranks [0, 1] differs ({}): "


@at("of_own_length")
def test_experts_of_sequences_of_other_lengths_name_what_each_rank_gives(candidate_trace):
    """DS-5794."""
    line = first_line(candidate_trace)
    assert line.startswith(DIFFERS.format(1, "64 elements given, 96 taken"))
    for rank, tokens in ((0, 4), (1, 6)):
        assert f"rank {rank} all_to_all_single of 2x{tokens}x16 float32 at " in line
    assert line.count("moe/sharded_moe.py:") == line.count("(from ") == 2
    assert line.count("stopping.py:") == 2


@at("of_own_capacity")
def test_capacities_that_no_engine_made_equal_are_named(candidate_trace):
    """DS-6089, as its users met it."""
    line = first_line(candidate_trace)
    assert line.startswith(DIFFERS.format(1, "80 elements given, 112 taken"))
    assert "rank 0 all_to_all_single of 2x5x16" in line
    assert "rank 1 all_to_all_single of 2x7x16" in line


@at("of_own_limit")
def test_a_capacity_that_each_rank_cuts_to_its_own_tokens_is_named(candidate_trace):
    """DS-6089, within an engine: the all_reduce of the capacity agrees, what follows does not."""
    line = first_line(candidate_trace)
    assert line.startswith(DIFFERS.format(2, "32 elements given, 160 taken"))


@at("in_one_stage")
def test_stages_of_which_one_has_experts_wait_in_other_collectives(candidate_trace):
    """DS-6714: both ranks wait, for ever, and nothing is printed."""
    found = failure(candidate_trace)
    assert found.result.stuck
    first, _, third, *_ = str(found).splitlines()
    assert first.startswith(DIFFERS.format(1, "operation"))
    assert "rank 0 all_reduce(SUM) of one float32 at " in first
    assert "runtime/utils.py:" in first
    assert "; rank 1 broadcast from rank 1 of " in first
    assert "runtime/pipe/engine.py:" in first
    assert third == "2 of 2 ranks were stuck in calls that cannot complete"


@at("of_another_model")
def test_a_key_error_of_deepspeed_arrives_with_the_line_that_asked_for_it(candidate_trace):
    """DS-6770: what is missing from DeepSpeed's message is in the traceback."""
    found = failure(candidate_trace)
    assert found.result.ranks[found.result.first_failed].error_type == "KeyError"
    assert "in of_another_model" in str(found)
    assert "stage_1_and_2.py" in str(found)


@pytest.mark.trainsafe(deepspeed_programs.two_models, dp=1, zero=1)
def test_an_optimizer_of_two_models_is_refused_by_what_it_holds(candidate_trace):
    """DS-6770 in a `deepspeed_program`: DeepSpeed is not asked."""
    assert first_line(candidate_trace) == (
        "rank 0 of 1 raised ProgramError: the optimizer holds a parameter that the model has not: "
        "number 0 of group 1, of shape [7, 2]; make the optimizer of parameters of the model that "
        "it is given, after the last change of them"
    )


@pytest.mark.slow
@at("of_own_length", sound=True)
def test_sequences_of_one_length_pass(candidate_trace):
    assert len(candidate_trace.at("float32").ranks) == 2


@pytest.mark.slow
@at("in_one_stage", sound=True)
def test_stages_that_all_have_experts_pass(candidate_trace):
    assert len(candidate_trace.at("float32").ranks) == 2
