"""A long pytest run keeps few references open, and reopens others without running them again."""

from __future__ import annotations

import pytest

from tests.support.end_to_end.inner_pytest import run_in

PROGRAM = """
import pathlib

def train(ctx, width):
    import torch

    with open(pathlib.Path(__file__).with_name("ran.txt"), "a") as file:
        file.write(f"{width} {ctx.point.world_size}\\n")
    model = torch.nn.Linear(width, 2).to(ctx.device, ctx.dtype)
    ctx.initialize(model)
    ctx.watch(model)
    with ctx.step(), ctx.microbatch(0):
        model(torch.ones(1, width, dtype=ctx.dtype)).sum().backward()
"""

TESTS = """
import os
import pytest
from program import train
from pytest_trainsafe.runs.execution import retirement

retirement.MAX_OPEN = 2

def opened():
    held = [f"/proc/self/fd/{name}" for name in os.listdir("/proc/self/fd")]
    return sum(os.readlink(path).endswith("/pin") for path in held if os.path.exists(path))

@pytest.mark.trainsafe(train, tp=[2], width=[1, 2, 3, 4, 5])
def test_first(reference_trace):
    assert "weight" in [id.path for id in reference_trace.at("float64").ids()]
    assert opened() <= 3  # also that of this test

@pytest.mark.trainsafe(train, tp=[2], width=[1])
def test_again(reference_trace):
    assert "weight" in [id.path for id in reference_trace.at("float64").ids()]
"""


@pytest.mark.skipif("sys.platform != 'linux'", reason="reads /proc/self/fd")
def test_references_are_closed_and_reopened_without_another_run(
    pytester: pytest.Pytester, without_hypothesis: None, shared_fork_server: None
) -> None:
    pytester.makepyfile(program=PROGRAM, test_it=TESTS)
    pytester.makeini("[pytest]\npythonpath = .\n")

    run_in(pytester, "-v", "-s").assert_outcomes(passed=6)

    ran = (pytester.path / "ran.txt").read_text().splitlines()
    assert sorted(line for line in ran if line.endswith(" 1")) == [
        f"{width} 1" for width in range(1, 6)
    ]
