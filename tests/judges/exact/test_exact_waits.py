"""A proof covers that results are read after their wait."""

from __future__ import annotations

import pytest

PROGRAM = """
import torch
import torch.distributed as dist


def train(ctx, bug=""):
    group, size = ctx.group("dp"), ctx.point.size("dp")
    net = torch.nn.Linear(4, 2 * 3, bias=False, dtype=ctx.dtype)
    ctx.initialize(net)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    ctx.watch(net, optimizer)
    for step in range(2):
        with ctx.step():
            optimizer.zero_grad()
            for index in ctx.microbatches(2):
                with ctx.microbatch(index):
                    made = torch.Generator().manual_seed(10 * step + index)
                    x = torch.randn(5, 4, generator=made, dtype=ctx.dtype)
                    loss = net(x).square().mean()
                    ctx.loss(loss)
                    loss.backward()
            if size > 1 and bug == "in place":
                work = dist.all_reduce(net.weight.grad, group=group, async_op=True)
                optimizer.step()
                work.wait()
            elif size > 1:
                reduce(net.weight, group, size, bug)
            optimizer.step()


def reduce(weight, group, size, bug):
    "Sums a gradient by a reduce-scatter and an all-gather, both asynchronous."
    whole = weight.grad.reshape(-1).clone()
    part = torch.empty_like(whole[: len(whole) // size])
    work = dist.reduce_scatter_tensor(part, whole, group=group, async_op=True)
    if bug == "input":
        whole.zero_()
    if bug != "reduction":
        work.wait()
    dist.barrier(group)
    gathered = torch.empty_like(whole)
    work = dist.all_gather_into_tensor(gathered, part, group=group, async_op=True)
    dist.barrier(group)
    if bug == "gather":
        weight.grad.copy_(gathered.view_as(weight))
    work.wait()
    if bug != "gather":
        weight.grad.copy_(gathered.view_as(weight))
"""

TEST = """
import pytest
from program import train
from pytest_trainsafe import assert_proved_equivalent


@pytest.mark.trainsafe(train, dp=2)
def test_waits(candidate_trace, reference_trace):
    assert_proved_equivalent(candidate_trace, reference_trace)


@pytest.mark.trainsafe(train, dp=2, candidate_args={"bug": "reduction"})
def test_reduction(candidate_trace, reference_trace):
    assert_proved_equivalent(candidate_trace, reference_trace)


@pytest.mark.trainsafe(train, dp=2, candidate_args={"bug": "gather"})
def test_gather(candidate_trace, reference_trace):
    assert_proved_equivalent(candidate_trace, reference_trace)


@pytest.mark.trainsafe(train, dp=2, candidate_args={"bug": "in place"})
def test_in_place(candidate_trace, reference_trace):
    assert_proved_equivalent(candidate_trace, reference_trace)


@pytest.mark.trainsafe(train, dp=2, candidate_args={"bug": "input"})
def test_input(candidate_trace, reference_trace):
    assert_proved_equivalent(candidate_trace, reference_trace)
"""


def judged(pytester: pytest.Pytester, launcher: str) -> pytest.RunResult:
    """Judges the correct program, which passes, and its four mistakes, which do not."""
    pytester.makepyfile(program=PROGRAM, test_it=TEST)
    result = pytester.runpytest_inprocess(
        f"--trainsafe-launcher={launcher}", "--trainsafe-localize=0", "--basetemp=base"
    )
    result.assert_outcomes(passed=1, failed=4)
    assert "uses a tensor that an asynchronous call writes" in " ".join(result.stdout.str().split())
    return result


def test_a_result_that_is_read_before_its_wait_is_not_proved_and_the_correct_program_is(
    pytester: pytest.Pytester, without_hypothesis: None, shared_fork_server: None
) -> None:
    result = judged(pytester, "threads")
    # The barriers let float64 ranks complete each call, so float64 does not see it.
    lines = [line for line in result.outlines if "because       exact numbers differ first" in line]
    assert [line.rpartition("differ first ")[2] for line in lines] == [
        "at weight (main_grad), and float64 agrees up to rounding;"
    ] * 3


def test_it_is_not_proved_either_if_ranks_are_processes_whose_backend_has_completed_the_call(
    pytester: pytest.Pytester, without_hypothesis: None, shared_fork_server: None
) -> None:
    # Whether float64 sees it is a matter of time.
    judged(pytester, "warm")
