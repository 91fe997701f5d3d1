"""The error of a missing annotation file says whether --trainsafe-annotate makes the file."""

from __future__ import annotations

from pathlib import Path

from pytest_trainsafe.annotations.missing import absent, absent_file

NAME = "MissingFileError"


def test_a_file_without_a_similar_one_beside_it_is_made(tmp_path: Path) -> None:
    error = str(absent(tmp_path / "shards.yaml"))
    assert "`pytest --trainsafe-annotate` makes it" in error
    assert absent_file(NAME, error) == tmp_path / "shards.yaml"


def test_a_file_beside_a_similar_one_is_not_made_and_the_error_says_so(tmp_path: Path) -> None:
    (tmp_path / "layouts.yaml").touch()
    error = str(absent(tmp_path / "layout.yaml"))
    assert "did you mean 'layouts.yaml'? If you mean another file, make it, empty" in error
    assert absent_file(NAME, error) is None


def test_a_file_in_a_folder_that_does_not_exist_is_not_made(tmp_path: Path) -> None:
    error = str(absent(tmp_path / "nowhere" / "layouts.yaml"))
    assert error.endswith(f"there is no such file, and no folder {tmp_path}/nowhere")
    assert absent_file(NAME, error) is None
