"""The package is one folder for every tool, and its files have one name."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from importlib import import_module, metadata
from pathlib import Path

import pytest

Run = Callable[..., str]

LINKED = ("fixtures", "invariants", "reference_models")

#: Prints the file of a package as tools find it that run no code of an installation: by the path.
BY_PATH = """
from importlib.machinery import PathFinder
print(PathFinder.find_spec("pytest_trainsafe").origin)
"""


@pytest.fixture
def editable(root: Path) -> None:
    """Skips a test that is about an editable installation, if there is none."""
    import pytest_trainsafe

    if not Path(pytest_trainsafe.__file__).is_relative_to(root):
        pytest.skip("pytest-trainsafe is installed from a wheel here")


def test_every_package_has_an_init_file(packages: list[str], shipped: set[str]) -> None:
    assert {f"{name.replace('.', '/')}/__init__.py" for name in packages} <= shipped


@pytest.mark.parametrize("name", LINKED)
def test_a_folder_of_the_repository_is_a_relative_link_in_the_package(
    root: Path, name: str
) -> None:
    assert os.readlink(root / "pytest_trainsafe" / name) == f"../{name}"
    assert (root / name).is_dir()


def test_every_package_can_be_imported(packages: list[str]) -> None:
    for name in packages:
        assert import_module(name).__name__ == name


@pytest.mark.usefixtures("editable")
def test_an_editable_installation_is_a_path_that_tools_read(
    run: Run, root: Path, tmp_path: Path
) -> None:
    printed = run(sys.executable, "-P", "-c", BY_PATH, cwd=tmp_path)

    assert printed.strip() == str(root / "pytest_trainsafe" / "__init__.py")


@pytest.mark.usefixtures("editable")
def test_modules_of_an_editable_installation_have_the_names_of_the_repository(
    packages: list[str], root: Path
) -> None:
    for name in packages:
        module = import_module(name)
        (folder,) = module.__path__
        linked = name.split(".")[1:2]
        below = name.split(".")[1:] if linked and linked[0] in LINKED else name.split(".")
        assert Path(folder) == root.joinpath(*below)

    from pytest_trainsafe.reference_models import gpt

    assert gpt.__file__ == gpt.train.__code__.co_filename == str(root / "reference_models/gpt.py")


def test_the_plugin_is_registered_once() -> None:
    ours = [
        (entry.name, entry.value)
        for entry in metadata.distribution("pytest-trainsafe").entry_points
        if entry.group == "pytest11"
    ]

    assert ours == [("trainsafe", "pytest_trainsafe.plugin")]
