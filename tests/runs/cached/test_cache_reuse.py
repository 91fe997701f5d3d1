"""A reference is run once: for two xdist workers, and for the pytest runs after that."""

from __future__ import annotations

from pathlib import Path

import pytest

pytestmark = pytest.mark.usefixtures("shared_fork_server")

PROGRAM = """
def train(ctx):
    import torch

    model = torch.nn.Linear(2, 2).to(ctx.device, ctx.dtype)
    ctx.initialize(model)
    ctx.watch(model)
    with ctx.step(), ctx.microbatch(0):
        model(torch.ones(1, 2, dtype=ctx.dtype)).sum().backward()
"""

TESTS = """
import pytest
from program import train
from pytest_trainsafe.sweep.point_summary import attach_summary

@pytest.mark.trainsafe(train, tp=[2, 4])
def test_reference(request, trainsafe, reference_trace):
    assert "weight" in [id.path for id in reference_trace.at("float64").ids()]
    summary = {"point": trainsafe.point.id, "verdict": "pass"}
    attach_summary(request.node, {**summary, "references": reference_trace.runs.reused})
"""


@pytest.fixture
def project(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> pytest.Pytester:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))  # a budget of its own
    monkeypatch.setenv("PYTEST_ADDOPTS", "-p no:hypothesispytest")
    pytester.makepyfile(program=PROGRAM, test_it=TESTS)
    pytester.makeini("[pytest]\npythonpath = .\n")
    return pytester


def test_xdist_workers_share_a_reference_and_later_runs_reuse_it_unless_no_cache(
    project: pytest.Pytester,
) -> None:
    first = project.runpytest_inprocess("-n", "2")
    first.assert_outcomes(passed=2)
    first.stdout.fnmatch_lines(["references: 0 reused, 1 run"])

    second = project.runpytest_inprocess()
    second.assert_outcomes(passed=2)
    second.stdout.fnmatch_lines(["references: 1 reused, 0 run"])

    cache = project.path / ".pytest_cache" / "d" / "trainsafe"
    entries = {path: path.stat().st_mtime_ns for path in cache.glob("*/trace")}
    assert len(entries) == 1
    uncached = project.runpytest_inprocess("--trainsafe-no-cache", "--basetemp=base")
    uncached.assert_outcomes(passed=2)
    uncached.stdout.no_fnmatch_line("references:*")
    uncached.stdout.fnmatch_lines(["trainsafe: *no-cache*"])
    assert len(list((project.path / "base").glob("trainsafe/*/trace/manifest.json"))) == 1
    assert {path: path.stat().st_mtime_ns for path in cache.glob("*/trace")} == entries
