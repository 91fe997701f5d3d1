"""Checks that a checkout has its links.  Everything else is in pyproject.toml."""

from pathlib import Path

from setuptools import setup

for name in ("fixtures", "invariants", "reference_models"):
    if not Path("pytest_trainsafe", name).is_dir():
        raise SystemExit(
            f"pytest_trainsafe/{name} is not a link to the folder {name}, but git writes it as one "
            "where it may.  Run `git config core.symlinks true` and `git checkout pytest_trainsafe`"
        )

setup()
