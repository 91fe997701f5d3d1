"""A failure shows the lines of the test, and no frame of this package unless it is asked for."""

from __future__ import annotations

import re

import pytest

# Imports torch, which cannot be imported again when `pytester` has restored the modules.
import pytest_trainsafe.runs.session  # noqa: F401
from tests.support.end_to_end.inner_pytest import run_in

MODEL = """
import torch


def train(ctx, wrong=False, still=False):
    net = torch.nn.Linear(4, 4).to(ctx.dtype)
    ctx.initialize(net)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    ctx.watch(net, optimizer)
    with ctx.step(), ctx.microbatch(0):
        loss = net(torch.ones(2, 4, dtype=ctx.dtype)).square().mean()
        ctx.loss(loss)
        loss.backward()
        if not still:
            optimizer.step()
    if wrong:
        raise ValueError("no samples are left")


def failing(x):
    raise ValueError("no samples are left")
"""

#: Tests that fail in every entry point; each line that fails says `# here`.
TESTS = """
import model
import pytest
from model import train
from pytest_trainsafe import (
    assert_deterministic,
    assert_equivalent,
    assert_invariants,
    assert_resumable,
    assert_rng,
    assert_same_by,
    assert_trainsafe,
)
from pytest_trainsafe.trace.reader import Trace

marked = pytest.mark.trainsafe(train, dtype=["float64"])
wrong = pytest.mark.trainsafe(train, args={"wrong": True}, dtype=["float64"])
still = pytest.mark.trainsafe(train, args={"still": True}, dtype=["float64"])


@wrong
def test_at_of_a_run_that_raises(candidate_trace):
    candidate_trace.at("float64")  # here


@wrong
def test_assertion_on_a_run_that_raises(candidate_trace, reference_trace):
    assert_trainsafe(candidate_trace, reference_trace)  # here


@wrong
def test_determinism_of_a_run_that_raises(reference_trace):
    assert_deterministic(reference_trace)  # here


@still
def test_verdict(candidate_trace, reference_trace):
    assert_trainsafe(candidate_trace, reference_trace)  # here


@marked
def test_expectations(candidate_trace):
    assert_rng(candidate_trace, expect=["noise"])  # here


@marked
def test_at(candidate_trace):
    candidate_trace.at("float63")  # here


@marked
def test_arguments(candidate_trace):
    assert_trainsafe(candidate_trace, candidate_trace)  # here


@marked
def test_accept(candidate_trace, reference_trace):
    assert_trainsafe(candidate_trace, reference_trace, accept=["nothing"])  # here


@marked
def test_relation(candidate_trace):
    assert_same_by("unknown", candidate_trace)  # here


@marked
def test_resume(candidate_trace):
    assert_resumable(candidate_trace, at_step=0)  # here


@marked
def test_packs(candidate_trace):
    assert_invariants(candidate_trace, "unknown")  # here


@marked
def test_axis(trainsafe):
    trainsafe.point.unknown  # here


def test_paths(tmp_path):
    assert_equivalent(tmp_path, tmp_path)  # here


def test_trace(tmp_path):
    (tmp_path / "manifest.json").write_text("{")
    Trace.open(tmp_path)  # here


def helper(group):
    group.run(model.failing, 1, world_size=1)  # here


def test_group(torchrun_group):
    helper(torchrun_group)  # here


def test_group_without_a_size(torchrun_group):
    torchrun_group.run(model.failing, 1)  # here


def test_context():
    try:
        raise KeyError("of the test")
    except KeyError:
        assert_equivalent(1, 2)  # here
"""

OURS = re.compile(r"pytest_trainsafe/.*\.py:\d+|/_base\.py:\d+|threading\.py:\d+|pluggy/|_pytest/")


@pytest.fixture
def project(
    pytester: pytest.Pytester, without_hypothesis: None, shared_fork_server: None
) -> pytest.Pytester:
    pytester.makepyfile(model=MODEL, test_entries=TESTS)
    return pytester


@pytest.mark.parametrize("style", ["long", "short"])
def test_no_entry_point_shows_a_frame_of_ours(project: pytest.Pytester, style: str) -> None:
    lines = TESTS.splitlines()
    due = [str(n) for n, line in enumerate(lines) if line.endswith("# here")]

    result = project.runpytest_inprocess(f"--tb={style}")

    result.assert_outcomes(failed=TESTS.count("def test_"))
    frames = [line for line in result.outlines if re.match(r"\S+\.py:\d+: ", line)]
    at = sorted(int(frame.split(":")[1]) for frame in frames)
    # In the long style, a test that calls a helper, and the exception that a test caught.
    more = {lines.index('        raise KeyError("of the test")')}
    assert {*at} - more == {*map(int, due)}
    assert not [line for line in result.outlines if OURS.search(line) and "E  " not in line]
    assert any("KeyError: 'of the test'" in line for line in result.outlines)


def test_full_trace_shows_every_frame(project: pytest.Pytester) -> None:
    result = project.runpytest_inprocess("--full-trace", "-k", "test_at or test_trace")

    shown = "\n".join(result.outlines)
    for file in ("runs/traces.py", "runs/requested.py", "trace/reader.py", "trace/manifest.py"):
        assert re.search(rf"pytest_trainsafe/{file}:\d+", shown), file


def test_native_tracebacks_are_left_alone(project: pytest.Pytester) -> None:
    result = project.runpytest_inprocess("--tb=native", "-k", "test_group_without_a_size")

    result.stdout.fnmatch_lines(['  File "*pytest_trainsafe/runs/group.py", line *, in run'])


def test_other_exceptions_in_our_code_show_where_they_are_raised(project: pytest.Pytester) -> None:
    project.makepyfile(
        test_bug="""
        from pytest_trainsafe.runs.group import Group


        def test_bug():
            Group(None, None).run(print, world_size=1)
        """
    )

    result = project.runpytest_inprocess("test_bug.py")

    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*pytest_trainsafe/runs/group.py:*: AttributeError"])


def test_an_error_in_the_setup_of_a_fixture_is_its_text_alone(project: pytest.Pytester) -> None:
    project.makeconftest(
        """
        from unittest.mock import Mock

        from pytest_trainsafe.errors import SettingError
        from pytest_trainsafe.runs import session

        session.Session = Mock(side_effect=SettingError("no such device; choose another one"))
        """
    )
    project.makepyfile(test_setup="def test_group(torchrun_group): pass")

    for style in ("long", "short", "line"):
        # In a process of its own, in which nothing else needs sessions.
        result = run_in(project, f"--tb={style}", "test_setup.py")

        result.assert_outcomes(errors=1)
        result.stdout.fnmatch_lines(
            [
                "*no such device; choose another one",
                "ERROR test_setup.py::test_group - SettingError: no such device; choose*",
            ]
        )
        shown = "\n".join(result.outlines)
        assert not re.search(r"fixtures/core\.py|mock\.py|session\.py", shown)
