"""Ranks are named together only if the same differs on them, not if the same advice helps."""

from __future__ import annotations

import pytest

from tests.support.replay import rank_fault_program
from tests.support.replay.resumed_ranks import resumed_ranks

FAULTS = ["", "streams", "streams of all", "moments", "moments of all"]
FAULTS += ["positions", "position of all"]


@pytest.fixture(scope="module")
def found(tmp_path_factory, run_launcher):
    """The messages for each fault of the program."""
    before, steps = rank_fault_program.BEFORE, rank_fault_program.STEPS
    folder = tmp_path_factory.mktemp("ranks")
    program = "tests.support.replay.rank_fault_program:train"
    findings = resumed_ranks(run_launcher, folder, program, FAULTS, before, steps)
    return {fault: [(f.check, f.message) for f in each] for fault, each in findings.items()}


def test_a_training_that_restores_all_of_both_ranks_has_no_finding(found):
    assert found[""] == []


def test_four_streams_that_two_ranks_lose_in_two_steps_are_named_by_rank(found):
    streams = found["streams"]

    assert {check for check, _ in streams} == {"resume:rng"}
    messages = [message for _, message in streams]
    assert sorted(message.partition(":")[0] for message in messages) == [
        "python random of rank 0 is 1 draw (2 numbers) ahead",
        "python random of rank 1 is 1 draw behind",
        "torch cpu of rank 0 is 1 draw ahead",
        "torch cpu of rank 1 is 3 draws ahead",
    ]
    assert not any("likewise" in message for message in messages)


def test_a_stream_that_all_ranks_lose_in_one_way_is_named_once(found):
    [(check, message)] = found["streams of all"]

    assert check == "resume:rng"
    assert message.startswith("torch cpu of rank 0 is 1 draw ahead")
    assert message.endswith("; rank 1 likewise")


def test_moments_that_differ_by_rank_are_named_by_rank(found):
    [(check, message)] = found["moments"]

    assert check == "resume:moment"
    assert "on rank 0 weight.exp_avg is all zeros; on rank 1 bias.exp_avg is 0, not " in message


def test_moments_that_all_ranks_lose_are_named_once(found):
    [(check, message)] = found["moments of all"]

    assert check == "resume:moment"
    assert message.endswith("; 1 more of its values differ; rank 1 likewise")


def test_positions_that_differ_by_rank_are_named_by_rank(found):
    [(check, message)] = found["positions"]

    assert check == "resume:data_order"
    assert "of rank 0 reads the batch that the uninterrupted training reads in step 1" in message
    assert "of rank 1 reads the batch that the uninterrupted training reads in step 3" in message


def test_a_position_that_all_ranks_lose_is_named_once(found):
    [(check, message)] = found["position of all"]

    assert check == "resume:data_order"
    assert message.count("reads the batch") == 1
    assert message.endswith("; rank 1 likewise")
