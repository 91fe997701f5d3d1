"""Copies of the reference models as packages with other names, like a user's package.

Imports within a copy are relative, so that copies differ only in the mutated file, and the other
compiled files can be shared.
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

#: The folders, with their subfolders, that the programs of the benchmark need.
_FOLDERS = ("blocks", "bugs", "datasets", "networks", "parallel", "plain", "training")

_OWN = re.compile(r"\bpytest_trainsafe\.reference_models\b(\.[\w.]+)?(?= import )")


class Packages:
    """The clean and the mutated packages in a folder that is on the module search path."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.clean = folder / "subject"

    def make(self) -> None:
        """Make the clean package from the models as they are now, and remove all others."""
        shutil.rmtree(self.folder, ignore_errors=True)
        for file in sources():
            part = file.relative_to(MODELS)
            (self.clean / part).parent.mkdir(parents=True, exist_ok=True)
            text = relative(file.read_text(encoding="utf-8"), part.parent)
            (self.clean / part).write_text(text, encoding="utf-8")
        compileall.compile_dir(self.clean, quiet=2)

    def program(self, name: str) -> Program:
        """A program of the clean package, such as `gpt`."""
        return resolve(f"{self.clean.name}.{name}:train")

    def mutant(self, mutation: Mutation, name: str) -> Path:
        """A new package with one mutation in it."""
        made = self.folder / name
        shutil.copytree(self.clean, made, copy_function=os.link)
        file = made / MUTATED / mutation.file
        mutated = mutation.applied((MODELS / MUTATED / mutation.file).read_text(encoding="utf-8"))
        for stale in (file, *(file.parent / "__pycache__").glob(f"{file.stem}.*.pyc")):
            stale.unlink()
        inside = (Path(MUTATED) / mutation.file).parent
        file.write_text(relative(mutated, inside), encoding="utf-8")
        return made

    def program_of(self, package: Path, name: str) -> Program:
        """The same program of a mutated package, which this process does not import."""
        clean = self.program(name)
        path = clean.path.replace(self.clean.name, package.name, 1)
        return replace(clean, path=path, file=str(package / f"{name}.py"))


def sources() -> list[Path]:
    """The files that a copy consists of."""
    found = [*MODELS.iterdir(), *(file for name in _FOLDERS for file in (MODELS / name).rglob("*"))]
    return [file for file in found if file.suffix in (".py", ".yaml")]


def relative(source: str, folder: Path) -> str:
    """The source of a module in `folder`, with relative imports within the reference models.

    `folder` is a path relative to the folder of the reference models.
    """
    dots = "." * (len(folder.parts) + 1)
    return _OWN.sub(lambda found: dots + (found[1] or ".").removeprefix("."), source)
