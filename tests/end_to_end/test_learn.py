"""A project learns a pack from its healthy tests, and later tests must keep its invariants."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.usefixtures("shared_fork_server")

PROGRAM = """
import torch
from torch import nn

FAULT = ""


def train(ctx):
    model = nn.Linear(4, 3).to(ctx.dtype)
    ctx.initialize(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    ctx.watch(model, optimizer)
    for step in range(3):
        with ctx.step():
            if FAULT != "no zero_grad":
                optimizer.zero_grad()
            for index in ctx.microbatches(2):
                with ctx.microbatch(index):
                    torch.manual_seed(10 * step + index)
                    loss = model(torch.randn(5, 4, dtype=ctx.dtype)).square().mean()
                    ctx.loss(loss)
                    loss.backward()
            if ctx.point.size("dp") > 1 and FAULT != "unreduced":
                for parameter in model.parameters():
                    torch.distributed.all_reduce(parameter.grad, group=ctx.group("dp"))
            optimizer.step()
"""

HEALTHY = """
import pytest
from program import train
from pytest_trainsafe import assert_trainsafe


@pytest.mark.trainsafe(train, dp=2, dtype=["float64"], healthy=True)
def test_it_trains(candidate_trace, reference_trace):
    assert_trainsafe(candidate_trace, reference_trace)


@pytest.mark.trainsafe(train, dp=2, dtype=["float64"], healthy=True, seed=1)
def test_that_fails_for_another_reason(candidate_trace, reference_trace):
    assert_trainsafe(candidate_trace, reference_trace)
    assert False
"""

CHECKED = """
import pytest
from program import FAULT, train
from pytest_trainsafe import TrainsafeFailure, assert_invariants, assert_trainsafe


@pytest.mark.trainsafe(train, dp=2, dtype=["float64"], packs=["ours"])
def test_healthy(candidate_trace, reference_trace):
    assert_trainsafe(candidate_trace, reference_trace)


@pytest.mark.trainsafe(train, dp=2, dtype=["float64"])
def test_a_fault_that_both_share(candidate_trace):
    assert FAULT == "no zero_grad"
    with pytest.raises(TrainsafeFailure) as failure:
        assert_invariants(candidate_trace, "ours")
    [finding, *_] = failure.value.findings
    assert finding.judge == "learn"
    assert dict(finding.evidence)["step"] == 1
    assert "zero_grad" in str(failure.value)


@pytest.mark.trainsafe(train, dp=2, dtype=["float64"])
def test_ranks_that_diverge(candidate_trace):
    assert FAULT == "unreduced"
    with pytest.raises(TrainsafeFailure, match="is equal on the ranks"):
        assert_invariants(candidate_trace, "ours")
"""


def test_a_pack_is_learned_from_healthy_tests_and_checked(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(program=PROGRAM, test_healthy=HEALTHY, test_checked=CHECKED)

    learned = pytester.runpytest_inprocess("test_healthy.py", "--trainsafe-learn=ours")
    learned.assert_outcomes(passed=1, failed=1)
    learned.stdout.fnmatch_lines(
        [
            "not learned from *test_that_fails_for_another_reason*: the test failed",
            "learned from 1 run of 1 program (* records): * invariants in *invariants/ours.pack",
            "* new: *",
        ]
    )
    pack = (pytester.path / "invariants" / "ours.pack").read_text(encoding="utf-8")
    assert 'program "program:train" = {' in pack

    # Names of different lengths: Python reuses what it compiled of a file of this size and second.
    for fault, test in (("no zero_grad", "share"), ("unreduced", "diverge"), ("", "healthy")):
        pytester.makepyfile(program=PROGRAM.replace('FAULT = ""', f"FAULT = {fault!r}"))
        checked = pytester.runpytest_inprocess("test_checked.py", "-k", test)
        checked.assert_outcomes(passed=1, deselected=2)
    again = pytester.runpytest_inprocess(
        "test_healthy.py", "-k", "trains", "--trainsafe-learn=ours"
    )
    again.stdout.fnmatch_lines(["the invariants are the same as before"])
    assert (pytester.path / "invariants" / "ours.pack").read_text(encoding="utf-8") == pack


SUITE = """
import pytest
from program import train
from pytest_trainsafe import assert_trainsafe


@pytest.mark.trainsafe(train, dp=1, dtype=["float64"])
def test_it_trains(candidate_trace, reference_trace):
    assert_trainsafe(candidate_trace, reference_trace)
"""


@pytest.mark.parametrize("fault", ["no zero_grad", ""])
def test_packs_of_a_suite_are_only_reported_first(pytester: pytest.Pytester, fault: str) -> None:
    program = PROGRAM.replace('FAULT = ""', f"FAULT = {fault!r}")
    pytester.makepyfile(program=program, test_suite=SUITE)
    result = pytester.runpytest_inprocess("--trainsafe-packs=pytorch", "--trainsafe-packs-report")
    result.assert_outcomes(passed=1)
    if not fault:
        result.stdout.fnmatch_lines(["1 test kept all rules of pytorch that applied"])
        return
    result.stdout.fnmatch_lines(
        [
            "1 test of 1 broke 1 rule of pytorch; no test failed for it, because of *",
            "broken rule: between two calls of torch.optim.*.step, grad of *: 1 test, first *",
        ]
    )
    failing = pytester.runpytest_inprocess("--trainsafe-packs=pytorch")
    failing.assert_outcomes(failed=1)


def test_without_a_healthy_test_no_pack_is_written(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("def test_plain(): pass")

    result = pytester.runpytest("--trainsafe-learn=ours")
    result.stdout.fnmatch_lines(
        ["no pack was written, because no test marked healthy=True called assert_trainsafe"]
    )
    assert not (pytester.path / "invariants").exists()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["--trainsafe-learn", "tests/test_x.py"], "*write --trainsafe-learn=NAME before the*"),
        (["--trainsafe-packs=a b"], "*--trainsafe-packs takes names of packs*not 'a b'*"),
    ],
)
def test_an_invalid_pack_name_is_a_usage_error(
    pytester: pytest.Pytester, given: list[str], message: str
) -> None:
    result = pytester.runpytest(*given)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([message])
