"""Kept traces of different processes and Runs are in different folders of one directory."""

from __future__ import annotations

from pathlib import Path

from pytest_trainsafe.config.settings import Settings
from pytest_trainsafe.runs.session import Session


def test_no_two_runs_share_a_folder(tmp_path: Path) -> None:
    settings = Settings(keep_traces=str(tmp_path))
    sessions = [Session(settings, tmp_path / name) for name in ("one", "other")]

    made = [session.folders.new("tp2-float32-run") for session in sessions * 2]

    for session in sessions:
        session.close()
    assert len(set(made)) == 4
    assert {folder.parent for folder in made} == {tmp_path / "trainsafe"}
