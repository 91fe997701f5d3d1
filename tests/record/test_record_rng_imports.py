"""What an installed package draws while it is imported is no draw of the program."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType

import pytest

SOURCE = """
from pytest_trainsafe.judges.replay.rng.instrument.frames import at_import

def draw():
    return at_import()

AT_IMPORT = draw()
"""


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[ModuleType, ModuleType]:
    """The same source as an installed package and as a module of the project."""
    packages, project = tmp_path / "lib" / "site-packages", tmp_path / "project"
    for folder, name in ((packages, "an_installed_one"), (project, "one_of_the_project")):
        folder.mkdir(parents=True)
        (folder / f"{name}.py").write_text(SOURCE)
        monkeypatch.syspath_prepend(folder)
    library = importlib.import_module("an_installed_one")
    return library, importlib.import_module("one_of_the_project")


def test_only_installed_code_that_runs_at_its_import_counts_as_an_import(
    modules: tuple[ModuleType, ModuleType],
) -> None:
    library, own = modules

    assert library.AT_IMPORT
    assert not own.AT_IMPORT
    assert not library.draw()
    assert not own.draw()
