"""A training with torch's ZeroRedundancyOptimizer is resumed, and a lost shard is named."""

from __future__ import annotations

import pytest

from tests.support.replay import sharded_optimizer_program
from tests.support.replay.resumed_ranks import resumed_ranks


@pytest.fixture(scope="module")
def found(tmp_path_factory, run_launcher):
    """The findings for each fault of the program."""
    faults = ["", "shard of rank 1", "steps of rank 1"]
    steps = sharded_optimizer_program.STEPS
    folder = tmp_path_factory.mktemp("sharded")
    program = "tests.support.replay.sharded_optimizer_program:train"
    return resumed_ranks(run_launcher, folder, program, faults, 2, steps)


def test_sharded_states_that_every_rank_restores_have_no_finding(found):
    assert found[""] == []


def test_the_states_that_one_rank_does_not_restore_are_named_with_the_rank(found):
    moment, counter = found["shard of rank 1"]

    assert (moment.check, counter.check) == ("resume:moment", "resume:step_counter")
    assert "on rank 1 0.bias.exp_avg is absent; " in moment.message
    assert "on rank 1 0.bias.step is absent, not 2; " in counter.message


def test_the_step_counters_that_one_rank_does_not_restore_are_named_with_the_rank(found):
    [finding] = found["steps of rank 1"]

    assert finding.check == "resume:step_counter"
    assert "on rank 1 0.bias.step is 0, not 2" in finding.message
