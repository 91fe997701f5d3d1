"""The files that `torch.save` opens are noted, and saved as before."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from pytest_trainsafe.compat import files
from pytest_trainsafe.compat.private import lacking


def test_a_file_that_torch_saves_is_noted_inside_the_context_alone(tmp_path: Path) -> None:
    noted: list[object] = []
    with files.noted_saves(noted.append):
        torch.save({"a": torch.ones(2)}, tmp_path / "a.pt")
    torch.save({"b": torch.ones(2)}, tmp_path / "b.pt")
    assert [Path(str(each)) for each in noted] == [tmp_path / "a.pt"]
    assert torch.load(tmp_path / "a.pt")["a"].tolist() == [1, 1]


def test_without_the_writer_nothing_is_noted_and_files_are_saved(
    tmp_path: Path, without: Any
) -> None:
    copy = without("files")
    noted: list[object] = []
    with copy.noted_saves(noted.append):
        torch.save(torch.ones(2), tmp_path / "a.pt")
    assert noted == []
    assert torch.load(tmp_path / "a.pt").tolist() == [1, 1]
    [why] = lacking()
    assert why.endswith(" has no torch.serialization._open_zipfile_writer_file")
