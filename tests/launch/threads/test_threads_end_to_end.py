"""Tests with `--trainsafe-launcher threads` judge as those whose ranks are processes."""

from __future__ import annotations

from collections.abc import Callable

import pytest

TEST = """
import pytest
from pytest_trainsafe import assert_trainsafe
from pytest_trainsafe.reference_models import gpt

SMALL = {"layers": 1, "steps": 1}


@pytest.mark.trainsafe(gpt.train, tp=2, cp=2, args=SMALL)
def test_tensor_and_context_parallel(candidate_trace, reference_trace):
    assert_trainsafe(candidate_trace, reference_trace)


@pytest.mark.trainsafe(gpt.train, dp=2, zero=1, args={"layers": 1})
def test_sharded_optimizer(candidate_trace, reference_trace):
    assert_trainsafe(candidate_trace, reference_trace)


@pytest.mark.trainsafe(gpt.train, pp=2, vpp=2, args={"layers": 4, "steps": 1})
def test_interleaved_pipeline(candidate_trace, reference_trace):
    assert_trainsafe(candidate_trace, reference_trace)


@pytest.mark.trainsafe(
    gpt.train, args=SMALL, candidate_args={**SMALL, "bug": "sp-layernorm-grads"}, tp=2, sp=True
)
def test_planted_bug(candidate_trace, reference_trace):
    assert_trainsafe(candidate_trace, reference_trace)


def fail():
    raise ValueError("a rank failed")


def test_live_group(torchrun_group):
    torchrun_group.run(fail, world_size=2)
"""


def test_points_pass_and_a_planted_bug_fails(
    pytester: pytest.Pytester, write_ini: Callable[..., object], shared_fork_server: None
) -> None:
    """And a group that a test runs itself."""
    pytester.makepyfile(test_it=TEST)
    write_ini()

    options = ("--trainsafe-launcher", "threads", "--trainsafe-dtype", "float64")
    result = pytester.runpytest_inprocess("-q", *options)

    result.assert_outcomes(passed=3, failed=2)
    result.stdout.fnmatch_lines(
        ["*the ranks of tp hold partial sums: rank0 + rank1*", "*raised ValueError: a rank failed*"]
    )
    result.stdout.no_fnmatch_line("*instead of forked*")


REFUSED = """
import torch.distributed as dist


def too_many():
    pass


def nccl():
    dist.init_process_group("nccl")


def framework():
    import deepspeed


def test_world_size(torchrun_group):
    torchrun_group.run(too_many, world_size=65)


def test_backend(torchrun_group):
    torchrun_group.run(nccl, world_size=2)


def test_framework(torchrun_group):
    torchrun_group.run(framework, world_size=2)
"""


def test_what_threads_cannot_run_is_refused(
    pytester: pytest.Pytester, write_ini: Callable[..., object], shared_fork_server: None
) -> None:
    """With a sentence that says what to do."""
    pytester.makepyfile(test_it=REFUSED)
    write_ini()

    result = pytester.runpytest_inprocess("-q", "--trainsafe-launcher", "threads")

    result.assert_outcomes(failed=3)
    result.stdout.fnmatch_lines(
        [
            "*has 65 ranks, but the launcher `threads` runs at most 64 in one process*",
            "*creates a process group with the backend 'nccl', but the launcher `threads`*",
            "*the program imports deepspeed, whose modules keep the state of one rank*",
        ]
    )
