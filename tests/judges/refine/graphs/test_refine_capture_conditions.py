"""A condition on a tensor is captured with the outcome that the user says, which must come true."""

import pytest
import torch
import torch.distributed as dist

from pytest_trainsafe import ArgumentError, TrainsafeFailure, assert_refines
from pytest_trainsafe.judges.refine.certificate.checker import check
from pytest_trainsafe.judges.refine.graphs.modules import capture


def clipped(ranks, limit, early=False):
    """Clips by a condition, as torch's own clipping does not."""

    def step(given):
        x = given["x"]
        norm = x.square().sum()
        if ranks > 1 and not early:
            dist.all_reduce(norm)
        if norm > limit:
            x = x * limit / norm
        return {"y": x}

    return step


def graphs(outcome, limit, **planted):
    sequential = capture(
        clipped(1, limit), {"x": torch.zeros(4)}, name="sequential", conditions=[outcome]
    )
    ranks = [
        capture(clipped(2, limit, **planted), {"x": torch.zeros(2)}, rank=rank, ranks=2,
                conditions=[outcome])
        for rank in (0, 1)
    ]  # fmt: skip
    return sequential, ranks, {"mesh": {"dp": 2}, "inputs": {"x": "concat 0"}}


@pytest.mark.parametrize(("outcome", "limit"), [(True, 1e-6), (False, 1e6)])
def test_both_outcomes_are_proved_where_they_come_true(outcome, limit):
    sequential, ranks, relation = graphs(outcome, limit)
    certificate = assert_refines(sequential, ranks, relation)
    assert "the conditions gt of sequential are as they were captured" in certificate.assumed
    assert check(certificate, sequential, ranks, seed=3)


def test_a_norm_of_a_part_is_refuted():
    with pytest.raises(TrainsafeFailure, match="do not refine"):
        assert_refines(*graphs(True, 1e-6, early=True))


def test_nothing_is_said_if_the_outcome_is_another_one():
    with pytest.raises(TrainsafeFailure, match=r"takes the condition gt.* to be False"):
        assert_refines(*graphs(False, 1e-6))


def test_conditions_that_the_program_does_not_ask_for_are_refused():
    with pytest.raises(ArgumentError, match="given 2 conditions, but the program asked for 1"):
        capture(clipped(1, 1.0), {"x": torch.zeros(4)}, conditions=[True, True])
