"""Whether a report names the code that was mutated, or the code that calls it."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from _mutants import Mutation

#: A place in a report ("path.py:12"), and the beginning of the rows that name places.
_PLACE = re.compile(r"([\w./-]+\.py):(\d+)")
_ROW = re.compile(r"^  (look at|reduced by|annotate) +")


def places(report: str) -> list[tuple[str, int]]:
    """The file and line of every place in the rows `look at`, `reduced by` and `annotate`."""
    found: list[tuple[str, int]] = []
    inside = False
    for line in report.splitlines():
        if line.startswith("  ") and not line.startswith("   "):
            inside = _ROW.match(line) is not None
        if inside:
            found += [(file, int(number)) for file, number in _PLACE.findall(line)]
    return found


def named(report: str, package: Path, mutation: Mutation) -> str:
    """Which code of a mutant its report names: "file", "caller", "other" or "nothing".

    "file" is the mutated file. "caller" is a class or function whose text contains the name of the
    mutated class or function.
    """
    listed = places(report)
    if not listed:
        return "nothing"
    if any(f"/{file}".endswith(f"/parallel/{mutation.file}") for file, _ in listed):
        return "file"
    names = [part for part in mutation.where.split(".") if part != "module"]
    callers = (_block(package, file, line) for file, line in listed)
    if any(re.search(rf"\b{name}\b", text) for text in callers for name in names[-1:] + names[:1]):
        return "caller"
    return "other"


def _block(package: Path, file: str, line: int) -> str:
    """The text of the innermost class or function at a line of a package's file; "" if none."""
    found = [each for each in package.rglob(Path(file).name) if str(each).endswith(_tail(file))]
    if not found:
        return ""
    source = found[0].read_text(encoding="utf-8")
    best: ast.AST | None = None
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and (
            node.lineno <= line <= (node.end_lineno or line)
        ):
            best = node if best is None or node.lineno > best.lineno else best  # type: ignore[attr-defined]
    return (ast.get_source_segment(source, best) or "") if best is not None else ""


def _tail(file: str) -> str:
    """The last two parts of a path."""
    return "/".join(Path(file).parts[-2:])
