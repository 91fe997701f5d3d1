"""Exceptions of ranks: annotated where they are raised, told once, and stored at once."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.end_to_end.inner_pytest import run_in

MODEL = """
import torch


def check(ctx):
    if ctx.point.size("dp") > 1:
        raise ValueError("no samples are left")


def train(ctx, layers=1, wrong=False):
    if wrong:
        raise KeyError("optimizer")
    check(ctx)
    net = torch.nn.Sequential(*(torch.nn.Linear(4, 4) for _ in range(layers))).to(ctx.dtype)
    ctx.initialize(net)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    ctx.watch(net, optimizer)
    with ctx.step(), ctx.microbatch(0):
        loss = net(torch.ones(2, 4, dtype=ctx.dtype)).square().mean()
        ctx.loss(loss)
        loss.backward()
        optimizer.step()
"""

SWEEP = """
import pytest
from model import train
from pytest_trainsafe import assert_trainsafe


@pytest.mark.trainsafe(train, dp=[2, 3], layers=[1, 2], dtype=["float64"])
def test_it(candidate_trace, reference_trace):
    assert_trainsafe(candidate_trace, reference_trace)
"""

SHARED = """
import pytest
from model import train
from pytest_trainsafe import assert_trainsafe

marked = pytest.mark.trainsafe(train, dp=2, args={"wrong": True}, dtype=["float64"])


@marked
def test_one(candidate_trace, reference_trace):
    reference_trace.at("float64")


@marked
def test_two(candidate_trace, reference_trace):
    reference_trace.at("float64")
"""

KILLED = """
import os
import pytest
from model import train
from pytest_trainsafe import assert_trainsafe


@pytest.mark.trainsafe(train, dp=2, dtype=["float64"])
def test_fails(candidate_trace, reference_trace):
    assert_trainsafe(candidate_trace, reference_trace)


def test_that_kills_the_run():
    os._exit(9)
"""


@pytest.fixture
def project(
    pytester: pytest.Pytester,
    monkeypatch: pytest.MonkeyPatch,
    without_hypothesis: None,
    shared_fork_server: None,
) -> pytest.Pytester:
    pytester.makepyfile(model=MODEL)
    monkeypatch.setenv("GITHUB_WORKSPACE", str(pytester.path))
    return pytester


def test_an_exception_of_ranks_is_one_cause_at_the_line_that_raised_it(
    project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    project.makepyfile(test_run=SWEEP)

    result = run_in(project)

    result.assert_outcomes(failed=4)
    (line,) = [line for line in result.outlines if line.startswith("::error")]
    assert line.startswith("::error file=model.py,line=6,title=trainsafe%3A model.train%3A rank ")
    assert "raised ValueError at model.py%3A6%3A no samples are left::" in line
    assert "::exception: rank " in line
    assert "%0A4 points: dtype=float64 with dp=2 layers=1; dp=2 layers=2; dp=3 layers=1" in line
    result.stdout.fnmatch_lines(
        [
            "4 errors; 1 cause",
            "1. model.train: rank * of 2 raised ValueError: no samples are left",
            "   points    4: dtype=float64 with dp=2 layers=1; dp=2 layers=2; dp=3*",
            "   look at   model.py:6",
        ]
    )


def test_the_exception_of_a_shared_run_is_told_once_and_the_summary_names_the_folder_of_reports(
    project: pytest.Pytester,
) -> None:
    project.makepyfile(test_run=SHARED)

    result = run_in(project, "--basetemp=temp", "--junitxml=out.xml")

    result.assert_outcomes(failed=2)
    # Under CI, pytest repeats whole messages in its summary.
    shown = [line for line in result.outlines if line.startswith("E ")]
    assert sum("raise KeyError" in line for line in shown) == 1
    result.stdout.fnmatch_lines(
        [
            "*rank 0 of 1 raised KeyError: 'optimizer', at */model.py:11",
            "*the same run ended test_run.py::test_one*, whose report has the tracebacks of*",
            "reports: temp/trainsafe/reports",
        ]
    )
    written = Path(project.path, "out.xml").read_text(encoding="utf-8")
    assert written.count('name="trainsafe_report"') == 2
    assert 'name="trainsafe_error_at" value="' in written


def test_the_report_of_a_failure_outlives_a_run_that_is_killed(project: pytest.Pytester) -> None:
    project.makepyfile(test_run=KILLED)

    result = run_in(project, "--basetemp=temp")

    assert result.ret == 9
    (file,) = Path(project.path, "temp", "trainsafe", "reports").iterdir()
    text = file.read_text(encoding="utf-8")
    assert text.startswith("test_run.py::test_fails[dp2-float64]\n\n")
    assert "raised ValueError: no samples are left" in text
