"""The sockets of `multiprocessing` are in a folder that is removed even for a killed rank."""

from __future__ import annotations

import multiprocessing.util
import os
from multiprocessing import process
from pathlib import Path

import pytest

from pytest_trainsafe.launch.resources import temporary


@pytest.fixture
def config(monkeypatch: pytest.MonkeyPatch) -> dict[str, object]:
    """What `multiprocessing` knows of this process, as in a new one."""
    own: dict[str, object] = {}
    monkeypatch.setattr(process.current_process(), "_config", own)
    return own


def test_the_temporary_folder_of_multiprocessing_is_in_the_ranks_folder(
    config: dict[str, object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(temporary, "_LONGEST", 4096)
    temporary.provide(tmp_path / "tmp")
    assert multiprocessing.util.get_temp_dir() == str(tmp_path / "tmp")
    temporary.remove(tmp_path / "tmp")
    assert not (tmp_path / "tmp").exists()


def test_a_folder_with_a_long_path_is_a_link_to_one_with_a_short_path(
    config: dict[str, object], tmp_path: Path
) -> None:
    parent = tmp_path / ("long" * 20)
    parent.mkdir()
    temporary.provide(parent / "tmp")
    chosen = multiprocessing.util.get_temp_dir()
    assert os.readlink(parent / "tmp") == chosen
    assert len(chosen) + len("/listener-12345678") < 108
    Path(chosen, "listener-12345678").touch()
    temporary.remove(parent / "tmp")
    assert not os.path.lexists(chosen)
    assert not os.path.lexists(parent / "tmp")


def test_a_link_that_the_program_created_is_removed_but_not_followed(tmp_path: Path) -> None:
    (tmp_path / "precious").mkdir()
    (tmp_path / "tmp").symlink_to(tmp_path / "precious")
    temporary.remove(tmp_path / "tmp")
    assert (tmp_path / "precious").is_dir()
    assert not os.path.lexists(tmp_path / "tmp")
