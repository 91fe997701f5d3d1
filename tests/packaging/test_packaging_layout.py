"""pyproject.toml lists every folder with code, and its place in the package."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module, metadata
from pathlib import Path
from typing import Any

import pytest

Run = Callable[..., str]


def folders_with_code(shipped: set[str]) -> set[str]:
    return {path.rpartition("/")[0].replace("/", ".") for path in shipped if path.endswith(".py")}


def test_every_folder_with_code_is_a_listed_package(
    pyproject: dict[str, Any], shipped: set[str]
) -> None:
    listed = pyproject["tool"]["setuptools"]["packages"]

    assert folders_with_code(shipped) == set(listed)
    assert len(listed) == len(set(listed))


def test_every_listed_package_has_an_init_file(
    pyproject: dict[str, Any], shipped: set[str]
) -> None:
    inits = {f"{name.replace('.', '/')}/__init__.py" for name in listed_packages(pyproject)}

    assert inits <= shipped


def test_top_level_folders_other_than_the_package_are_mapped_into_it(
    pyproject: dict[str, Any],
) -> None:
    mapped = pyproject["tool"]["setuptools"]["package-dir"]

    assert all(name == f"pytest_trainsafe.{folder}" for name, folder in mapped.items())
    assert set(mapped.values()) == {"fixtures", "invariants", "reference_models"}


def test_every_listed_package_can_be_imported(pyproject: dict[str, Any]) -> None:
    for name in listed_packages(pyproject):
        assert import_module(name).__name__ == name


def test_an_editable_installation_imports_the_repository(
    pyproject: dict[str, Any], root: Path
) -> None:
    import pytest_trainsafe

    if not Path(pytest_trainsafe.__file__).is_relative_to(root):
        pytest.skip("pytest-trainsafe is installed from a wheel here")
    for name in listed_packages(pyproject):
        file = import_module(name).__file__
        assert file is not None
        assert Path(file).is_relative_to(root)


def test_source_folders_are_not_importable_as_top_level_packages(run: Run, tmp_path: Path) -> None:
    script = "from importlib.util import find_spec; print([find_spec(n) for n in {names}])"
    names = ["fixtures", "invariants", "reference_models"]

    printed = run(sys.executable, "-P", "-c", script.format(names=names), cwd=tmp_path)

    assert printed.strip() == "[None, None, None]"


def test_the_plugin_is_registered_once() -> None:
    ours = [
        (entry.name, entry.value)
        for entry in metadata.distribution("pytest-trainsafe").entry_points
        if entry.group == "pytest11"
    ]

    assert ours == [("trainsafe", "pytest_trainsafe.plugin")]


def listed_packages(pyproject: dict[str, Any]) -> list[str]:
    packages: list[str] = pyproject["tool"]["setuptools"]["packages"]
    return packages
