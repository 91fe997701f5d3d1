"""Copies of the reference models under names of their own, as a user's package would be.

Imports within a copy are relative, so that copies differ in nothing but what was mutated, and
their compiled files can be shared.
"""

from __future__ import annotations

import compileall
import os
import re
import shutil
from dataclasses import replace
from pathlib import Path

from _measure import ROOT
from _mutants import Mutation

from pytest_trainsafe.sweep.program import Program, resolve

MODELS = ROOT / "reference_models"
MUTATED = "parallel"

#: What the programs of the benchmark need.
_FOLDERS = ("", "parallel", "bugs")

_OWN = re.compile(r"\bpytest_trainsafe\.reference_models\b(\.[\w.]+)?(?= import )")


class Packages:
    """Packages below a folder that is on the module search path, the clean one among them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.clean = folder / "subject"

    def make(self) -> None:
        """Make the clean package from the models as they are now, and remove all others."""
        shutil.rmtree(self.folder, ignore_errors=True)
        for part in _FOLDERS:
            (self.clean / part).mkdir(parents=True, exist_ok=True)
            for file in (MODELS / part).iterdir():
                if file.suffix in (".py", ".yaml"):
                    text = file.read_text(encoding="utf-8")
                    (self.clean / part / file.name).write_text(relative(text, part))
        compileall.compile_dir(self.clean, quiet=2)

    def program(self, name: str) -> Program:
        """A program of the clean package, `gpt` for one."""
        return resolve(f"{self.clean.name}.{name}:train")

    def mutant(self, mutation: Mutation, name: str) -> Path:
        """A new package with one mutation in it."""
        made = self.folder / name
        shutil.copytree(self.clean, made, copy_function=os.link)
        file = made / MUTATED / mutation.file
        mutated = mutation.applied((MODELS / MUTATED / mutation.file).read_text(encoding="utf-8"))
        for stale in (file, *(file.parent / "__pycache__").glob(f"{file.stem}.*.pyc")):
            stale.unlink()
        file.write_text(relative(mutated, MUTATED), encoding="utf-8")
        return made

    def program_of(self, package: Path, name: str) -> Program:
        """The same program of a mutated package, which this process does not import."""
        clean = self.program(name)
        path = clean.path.replace(self.clean.name, package.name, 1)
        return replace(clean, path=path, file=str(package / f"{name}.py"))


def relative(source: str, part: str) -> str:
    """A module's source with relative imports within the reference models."""
    dots = ".." if part else "."
    return _OWN.sub(lambda found: dots + (found[1] or ".").removeprefix("."), source)
