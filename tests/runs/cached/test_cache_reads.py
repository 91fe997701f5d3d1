"""A reference is run again when a file or variable that its program reads has changed."""

from __future__ import annotations

from pathlib import Path

import pytest

pytestmark = pytest.mark.usefixtures("shared_fork_server")

PROGRAM = """
import os, tempfile
from pathlib import Path
import torch

def train(ctx):
    factor = float(Path("factor.txt").read_text()) * float(os.environ.get("FACTOR", "1"))
    Path("log.txt").write_text(f"{os.getpid()} {ctx.world_size}")
    assert Path("log.txt").read_text()
    with tempfile.TemporaryDirectory() as folder:
        torch.save(factor, f"{folder}/factor.pt")
        assert torch.load(f"{folder}/factor.pt") == factor
    many = os.environ.get("MANY")
    for number in range(int(many) if many else 0):
        try:
            open(f"{number}.txt")
        except FileNotFoundError:
            pass
    model = torch.nn.Linear(2, 2).to(ctx.device, ctx.dtype)
    ctx.initialize(model)
    ctx.watch(model)
    with ctx.step(), ctx.microbatch(0):
        (model(torch.ones(1, 2, dtype=ctx.dtype)).sum() * factor).backward()
"""

TESTS = """
import pytest
from program import train
from pytest_trainsafe.sweep.point_summary import attach_summary

@pytest.mark.trainsafe(train, tp=[2])
def test_reference(request, trainsafe, reference_trace):
    assert "weight" in [id.path for id in reference_trace.at("float64").ids()]
    summary = {"point": trainsafe.point.id, "verdict": "pass"}
    attach_summary(request.node, {
        **summary,
        "references": reference_trace.runs.reused,
        "notes": [*reference_trace.runs.notes],
    })
"""

REUSED, RUN = "references: 1 reused, 0 run", "references: 0 reused, 1 run"


def test_outputs_do_not_count_and_changed_reads_run_the_reference_again(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))  # a budget of its own
    monkeypatch.setenv("PYTEST_ADDOPTS", "-p no:hypothesispytest")
    pytester.makepyfile(program=PROGRAM, test_it=TESTS)
    pytester.makeini("[pytest]\npythonpath = .\n")
    factor = pytester.path / "factor.txt"
    factor.write_text("1.0\n")

    def run() -> str:
        result = pytester.runpytest_inprocess()
        result.assert_outcomes(passed=1)
        return result.stdout.str()

    assert RUN in run()
    assert REUSED in run()
    factor.write_text("2.0\n")
    assert RUN in run()
    monkeypatch.setenv("FACTOR", "3")
    assert RUN in run()
    assert REUSED in run()
    monkeypatch.setenv("MANY", "5000")
    for _ in range(2):
        printed = run()
        assert RUN in printed
        assert "the reference of program:train is not kept for later runs, because" in printed
