"""No text that a program chose controls the terminal or writes a command into the job's log.

The program chooses the names of its modules, parameters and functions and the texts of exceptions.
"""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest

from tests.support.end_to_end.inner_pytest import run_in

# Imported here: pytester forgets modules that a test imports, and torch cannot be imported twice.
pytest.importorskip("torch")

#: An escape sequence, a title, a bell, two commands, a change of direction.
HOSTILE = "w\x1b[31m\x1b]0;t\x07\r::error::owned\n::error::owned\u202e##[error]owned"

#: Letters that are no danger stay as they are.
ORDINARY = "größe名"

#: Between what a job's log contains and the rest.
SUMMARY = "(the summary of the job, and the JUnit file)"

MODEL = """
import torch

NAME = {name!r}


class Scaled(torch.nn.Linear):
    factor = 1

    def forward(self, x):
        return self.factor * super().forward(x) + getattr(self, NAME + "p").sum()


Scaled.__qualname__ = Scaled.__name__ = NAME


def train(ctx):
    net = torch.nn.Sequential()
    net.add_module(NAME, Scaled(4, 4))
    net[0].register_parameter(NAME + "p", torch.nn.Parameter(torch.ones(4)))
    net[0].factor = ctx.point.size("dp")  # the fault
    ctx.initialize(net.to(ctx.dtype))
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


def fail():
    error = type(NAME, (RuntimeError,), {{}})
    raise error(NAME)


def kill():
    import os, sys
    print(NAME, file=sys.stderr)
    os._exit(3)
"""

TESTS = """
import pytest
from model import NAME, fail, kill, train
from pytest_trainsafe import assert_trainsafe
from pytest_trainsafe.errors import TrainsafeWarning


@pytest.mark.trainsafe(train, dp=[1, 2], dtype=["float64"])
def test_compared(candidate_trace, reference_trace):
    assert_trainsafe(candidate_trace, reference_trace)


@pytest.mark.parametrize("rank", [fail, kill])
def test_launched(torchrun_group, rank):
    torchrun_group.run(rank, world_size=1)


def test_warned():
    import warnings

    warnings.warn(NAME, TrainsafeWarning)
"""


@pytest.fixture
def output(
    pytester: pytest.Pytester,
    monkeypatch: pytest.MonkeyPatch,
    without_hypothesis: None,
    shared_fork_server: None,
):
    """Runs the tests with a name, and returns all that pytest wrote, in one text."""
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    summary = pytester.path / "summary.md"
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    monkeypatch.setenv("GITHUB_WORKSPACE", str(pytester.path.parent))

    def run(name: str, *options: str) -> str:
        pytester.makepyfile(model=MODEL.format(name=name), test_run=TESTS)
        result = run_in(pytester, "-v", "--junitxml=out.xml", *options)
        result.assert_outcomes(passed=2, failed=3, warnings=1)
        assert result.errlines == []
        tree = ElementTree.parse(pytester.path / "out.xml")
        values = [each.get("value", "") for each in tree.iter("property")]
        return "\n".join(
            [result.stdout.str(), SUMMARY, summary.read_text(encoding="utf-8"), *values]
        )

    return run


# The styles differ in how pytest indents the lines of a message.
@pytest.mark.parametrize("style", ["long", "native"])
def test_hostile_text_of_a_program_is_escaped_in_all_output(output, style: str) -> None:
    text = output(HOSTILE, "--color=no", f"--tb={style}")

    assert "\\x1b[31m\\x1b]0;t\\x07\\r::error::owned" in text
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]", text)
    lines = text.partition(SUMMARY)[0].split("\n")
    commands = [line for line in lines if line.strip().startswith("::") or "##[" in line]
    # Our own annotation is the only command; its parts are escaped (test_report_github.py).
    assert [line.partition("=")[0] for line in commands] == ["::error file"]


def test_ordinary_text_of_a_program_is_readable_in_all_output(output) -> None:
    text = output(ORDINARY, "--color=no")

    assert f"starts at     {ORDINARY}.output · activation" in text
    assert f"raised {ORDINARY}: {ORDINARY}" in text
    assert "\\x" not in text
