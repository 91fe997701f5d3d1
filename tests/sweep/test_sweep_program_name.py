"""Reports name a program in few words."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_trainsafe.sweep.program import Program


def test_a_function_has_its_module_and_a_script_its_path_from_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "project").mkdir()
    monkeypatch.chdir(tmp_path / "project")

    assert Program("models.gpt:train").name == "gpt.train"
    assert Program(str(tmp_path / "project/examples/run.py")).name == "examples/run.py"
    assert Program(str(tmp_path / "run.py")).name == str(tmp_path / "run.py")
