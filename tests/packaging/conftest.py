"""Shared by the packaging tests: the repository, its packages, and a wheel of it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Run = Callable[..., str]
Checkout = Callable[[Path], Path]

ROOT = Path(__file__).resolve().parents[2]

#: Everything that a wheel is made from.
SOURCES = ("pytest_trainsafe", "fixtures", "invariants", "reference_models")
FILES = ("pyproject.toml", "setup.py", "README.md", "LICENSE")


@pytest.fixture(scope="session")
def root() -> Path:
    """The repository."""
    return ROOT


@pytest.fixture(scope="session")
def pyproject() -> dict[str, Any]:
    """The content of pyproject.toml."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


@pytest.fixture(scope="session")
def shipped() -> set[str]:
    """The files that an installation must have, as paths relative to it."""
    found = set()
    for source in SOURCES:
        inside = "" if source == "pytest_trainsafe" else "pytest_trainsafe/"
        for file in (ROOT / source).rglob("*"):
            if file.is_file() and "__pycache__" not in file.parts:
                found.add(inside + file.relative_to(ROOT).as_posix())
    return found


@pytest.fixture(scope="session")
def packages(shipped: set[str]) -> list[str]:
    """Every folder with code, as the name of a package."""
    folders = {path.rpartition("/")[0] for path in shipped if path.endswith(".py")}
    return sorted(folder.replace("/", ".") for folder in folders)


@pytest.fixture(scope="session")
def run() -> Run:
    """Run a command: `run(*command, cwd=folder, NAME=value)` returns what it prints.

    If the command fails, the test fails with its output.
    """

    def run(*command: str, cwd: Path, **environment: str) -> str:
        finished = subprocess.run(
            command,
            cwd=cwd,
            env=os.environ | environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        if finished.returncode:
            pytest.fail(f"{' '.join(command)}\n{finished.stdout}{finished.stderr}", pytrace=False)
        return finished.stdout

    return run


@pytest.fixture(scope="session")
def checkout() -> Checkout:
    """Copy what a wheel is made from: `checkout(folder)` returns the folder.

    A build leaves files behind that the next build would include.
    """

    def checkout(folder: Path) -> Path:
        ignored = shutil.ignore_patterns("__pycache__")
        for name in SOURCES:
            shutil.copytree(ROOT / name, folder / name, symlinks=True, ignore=ignored)
        for name in FILES:
            shutil.copy(ROOT / name, folder)
        return folder

    return checkout


@pytest.fixture(scope="session")
def wheel(run: Run, checkout: Checkout, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel, built from a copy of the checkout."""
    copy = checkout(tmp_path_factory.mktemp("source"))
    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", cwd=copy)
    (built,) = (copy / "dist").glob("*.whl")
    return built


@pytest.fixture(scope="session")
def site(run: Run, wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel installed in it, and nothing else."""
    folder = tmp_path_factory.mktemp("installed") / "site"
    # Python compiles what the tests import; all of the package would take seconds.
    pip = [sys.executable, "-m", "pip", "install", "--disable-pip-version-check", "--no-compile"]
    run(*pip, "--no-deps", "--no-index", "--target", str(folder), str(wheel), cwd=folder.parent)
    return folder
