"""A judge can be taken out: without its package, programs are recorded and compared as before."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

import pytest_trainsafe
from tests.support.end_to_end import inner_pytest

PACKAGE = Path(pytest_trainsafe.__file__).parent

TEST = """
from importlib.util import find_spec

import pytest
from pytest_trainsafe import assert_trainsafe
from pytest_trainsafe.reference_models import gpt

assert find_spec("pytest_trainsafe.judges.WING") is None
SMALL = {"layers": 1, "steps": 1}
BUG = {**SMALL, "bug": "sp-layernorm-grads"}


@pytest.mark.trainsafe(gpt.train, tp=2, dtype=["float64"], args=SMALL)
def test_gpt(candidate_trace, reference_trace):
    assert_trainsafe(candidate_trace, reference_trace)


@pytest.mark.trainsafe(
    gpt.train, tp=2, sp=True, dtype=["float64"], args=SMALL, candidate_args=BUG
)
def test_gpt_with_a_bug(candidate_trace, reference_trace):
    assert_trainsafe(candidate_trace, reference_trace)
"""


@pytest.mark.parametrize("wing", ["learn", "replay"])
def test_without_the_package_of_a_judge_the_main_job_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wing: str
) -> None:
    missing = str(PACKAGE / "judges" / wing)

    def left_out(folder: str, names: list[str]) -> set[str]:
        return {name for name in names if os.path.join(folder, name) == missing}

    # With what Python has compiled: to compile the copy again takes seconds.
    shutil.copytree(PACKAGE, tmp_path / "path" / "pytest_trainsafe", ignore=left_out)
    folder = tmp_path / "tests"
    folder.mkdir()
    (folder / "pytest.ini").write_text("[pytest]\n")
    (folder / "test_gpt.py").write_text(TEST.replace("WING", wing))
    quick = ("-p", "no:hypothesispytest", "-p", "no:cacheprovider", "--trainsafe-localize=0")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "path"))

    done = inner_pytest.forked([f"--basetemp={tmp_path}/base", *quick], folder)

    assert "1 failed, 1 passed" in done.stdout, done.stdout
    assert "differs from its single-device reference" in done.stdout
