"""The imports of the package, by its syntax trees: those that run, and those for type checkers.

An import inside a function, or below TYPE_CHECKING, counts as any other.  An import path in a
string does not.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

PACKAGE = "pytest_trainsafe"

#: Folders of the repository that are parts of the package.
LINKED = ("fixtures", "invariants")


def modules(root: Path) -> dict[str, Path]:
    """The file of each module of the package, by its name, without `reference_models`."""
    found = {}
    for folder in (*sorted((root / PACKAGE).iterdir()), *(root / name for name in LINKED)):
        if folder.is_symlink():  # a folder of the repository
            continue
        for file in folder.rglob("*.py") if folder.is_dir() else [folder]:
            below = file.relative_to(root).with_suffix("").parts
            parts = below if below[0] == PACKAGE else (PACKAGE, *below)
            if file.suffix == ".py":
                found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = file
    return found


def import_graph(root: Path) -> dict[str, set[str]]:
    """Maps each module to the modules of the package that it imports."""
    files = modules(root)
    return {name: {*_imported(file, files)} - {name} for name, file in files.items()}


def _imported(file: Path, files: dict[str, Path]) -> Iterator[str]:
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in files)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: a relative import"
            assert node.module is not None
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                if whole in files or node.module in files:
                    yield whole if whole in files else node.module
