"""A real failing run: its terminal output, annotations, job summary, JUnit file and seconds."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from pytest_trainsafe.sweep.plan.seconds import read_seconds
from tests.support.end_to_end.inner_pytest import run_in

MODEL = """
import torch


class Scaled(torch.nn.Linear):
    factor = 1

    def forward(self, x):
        return self.factor * super().forward(x)


def train(ctx, layers=1):
    net = torch.nn.Sequential(*(Scaled(4, 4) for _ in range(layers))).to(ctx.dtype)
    net[0].factor = ctx.point.size("dp")  # the fault
    ctx.initialize(net)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    ctx.watch(net, optimizer)
    with ctx.step():
        for index in ctx.microbatches(2):
            with ctx.microbatch(index):
                torch.manual_seed(index)
                loss = net(torch.randn(5, 4, dtype=ctx.dtype)).square().mean()
                ctx.loss(loss)
                loss.backward()
        if ctx.point.size("dp") > 1:
            for parameter in net.parameters():
                torch.distributed.all_reduce(parameter.grad, group=ctx.group("dp"))
        optimizer.step()
"""

TESTS = """
import pytest
from model import train
from pytest_trainsafe import assert_trainsafe


@pytest.mark.trainsafe(train, dp=[1, 2], layers=[1, 2], dtype=["float64"])
def test_it(candidate_trace, reference_trace):
    assert_trainsafe(candidate_trace, reference_trace)


@pytest.mark.trainsafe(train, dp=[1], dtype=["float64"])
def test_of_another_error(candidate_trace, reference_trace):
    raise RuntimeError("::error::not a command")
"""


def test_a_failing_run_reports_its_cause_in_terminal_github_and_junit_file(
    pytester: pytest.Pytester,
    monkeypatch: pytest.MonkeyPatch,
    without_hypothesis: None,
    shared_fork_server: None,
) -> None:
    pytester.makepyfile(model=MODEL, test_run=TESTS)
    pytester.makeconftest("from pytest_trainsafe.report.run import live\n\nlive.PLAIN = 0.01")
    summary = pytester.path / "summary.md"
    summary.write_text("of another command\n")
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    monkeypatch.setenv("GITHUB_WORKSPACE", str(pytester.path.parent))

    result = run_in(pytester, "--trainsafe-localize=off", "--junitxml=out.xml")

    result.assert_outcomes(passed=2, failed=3)
    result.stdout.fnmatch_lines(
        [
            "*= trainsafe =*",
            "test_run.py::test_it (dtype=float64)",
            "  dp  layers  verdict  error/allowed  tensors  seconds",
            "  2   ?       fail     *",
            "  2   ?       fail     *",
            "2 failed, 1 error; 2 causes",
            "1. model.train: 0.output · activation",
            "   points    2: dp=2 layers=1 dtype=float64, dp=2 layers=2 dtype=float64",
            "   where     fails where dp >= 2; 2 other points pass",
            "   error     1.0e+00 in float64, rounding allows *",
            "   pattern   the value is 2 times the reference, which equals dp or",
            "             micro-batches",
            "   so        a division by dp or the number of micro-batches is missing, or a",
            "             sum over one of them counts replicas; if the size matches only by",
            "             chance, another factor is wrong",
            "   look at   model.py:7",
            "   rerun     pytest 'test_run.py::test_it[[]dp2-layers1-float64]'",
            "2. model.train: RuntimeError: ::error::not a command",
        ]
    )

    # Without a terminal, running Points are reported in plain lines.
    running = [line for line in result.outlines if line.startswith("trainsafe: dp=2 layers=")]
    assert any(", 2 ranks, " in line for line in running)

    name = pytester.path.name
    lines = [line for line in result.outlines if line.startswith("::")]
    assert len(lines) == 2
    assert lines[0].startswith(f"::error file={name}/model.py,line=7,")
    assert "title=trainsafe%3A model.train%3A 0.output · activation%3A 2 times" in lines[0]
    assert "%0Aaxes: fails where dp >= 2; 2 other points pass%0A" in lines[0]
    assert lines[1].startswith(f"::error file={name}/test_run.py,line=11,")
    run = f"cd {pytester.path.name} && pytest"
    assert lines[1].endswith(f"rerun: {run} 'test_run.py::test_of_another_error[dp1-float64]'")

    written = summary.read_text(encoding="utf-8")
    assert written.startswith("of another command\n## trainsafe: 2 failed, 1 error of 5 points\n")
    assert "fails where dp &#62;&#61; 2; 2 other points pass" in written
    assert "| dp | layers | verdict | error/allowed | tensors | seconds | worst tensor |" in written

    cases = {
        case.get("name"): {p.get("name"): p.get("value") for p in case.iter("property")}
        for case in ElementTree.parse(pytester.path / "out.xml").iter("testcase")
    }
    wrong = cases["test_it[dp2-layers2-float64]"]
    assert wrong["trainsafe_point"] == "dp=2 layers=2 dtype=float64"
    assert wrong["trainsafe_verdict"] == "fail"
    assert wrong["trainsafe_first_wrong"] == "0.output · activation · step 0 · micro-batch 0"
    assert str(wrong["trainsafe_pattern"]).startswith("the value is 2 times the reference")
    assert wrong["trainsafe_module"] == "0"
    assert str(wrong["trainsafe_source"]).endswith("model.py:7")
    assert cases["test_it[dp1-layers1-float64]"]["trainsafe_verdict"] == "pass"
    assert "trainsafe_point" in cases["test_of_another_error[dp1-float64]"]

    seconds = read_seconds(pytester.path / ".pytest_cache" / "d" / "trainsafe")
    assert len(seconds) == 5
    assert all(value > 0 for value in seconds.values())
