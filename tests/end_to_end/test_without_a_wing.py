"""A judge can be taken out: without its package, programs are recorded and compared as before."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest

import pytest_trainsafe
from tests.support.end_to_end import inner_pytest

PACKAGE = Path(pytest_trainsafe.__file__).parent

TEST = """
import pytest
from pytest_trainsafe import assert_trainsafe
from pytest_trainsafe.reference_models import gpt

BUG = {"bug": "sp-layernorm-grads"}


@pytest.mark.trainsafe(gpt.train, tp=2, cp=2, dtype=["float64"])
def test_gpt(candidate_trace, reference_trace):
    assert_trainsafe(candidate_trace, reference_trace)


@pytest.mark.trainsafe(gpt.train, tp=2, sp=True, dtype=["float64"], candidate_args=BUG)
def test_gpt_with_a_bug(candidate_trace, reference_trace):
    assert_trainsafe(candidate_trace, reference_trace)
"""


@pytest.mark.parametrize("wing", ["learn", "replay"])
def test_without_the_package_of_a_judge_the_main_job_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wing: str
) -> None:
    missing = str(PACKAGE / "judges" / wing)

    def left_out(folder: str, names: list[str]) -> set[str]:
        gone = {name for name in names if os.path.join(folder, name) == missing}
        return gone | {"__pycache__"}.intersection(names)

    shutil.copytree(PACKAGE, tmp_path / "path" / "pytest_trainsafe", ignore=left_out)
    folder = tmp_path / "tests"
    folder.mkdir()
    (folder / "pytest.ini").write_text("[pytest]\n")
    (folder / "test_gpt.py").write_text(TEST)
    command = [sys.executable, "-m", "pytest", f"--basetemp={tmp_path}/base"]
    quick = ("-p", "no:hypothesispytest", "-p", "no:cacheprovider", "--trainsafe-localize=0")

    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "path"))

    done = inner_pytest.captured([*command, *quick], folder)

    assert "1 failed, 1 passed" in done.stdout, done.stdout
    assert "differs from its single-device reference" in done.stdout
