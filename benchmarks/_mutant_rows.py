"""Reads the rows of mutants that a benchmark wrote, and the arguments of docs/mutants.md."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from _measure import ROOT

#: The page with the arguments for equivalent mutants.
PAGE = ROOT / "docs" / "mutants.md"


def argued() -> dict[str, str]:
    """The class of each surviving mutant of the page, by its id."""
    found: dict[str, str] = {}
    for line in PAGE.read_text(encoding="utf-8").splitlines() if PAGE.exists() else ():
        cells = [cell.strip() for cell in line.strip("|").split(" | ")]
        if len(cells) == 3 and cells[0].startswith("`") and cells[0].endswith("`"):
            found[cells[0].strip("`").replace("\\|", "|")] = cells[1]
    return found


def read(file: Path) -> list[dict[str, Any]]:
    """The last row of each mutant in a file; skips a line that was cut off."""
    found: dict[str, dict[str, Any]] = {}
    for line in file.read_text(encoding="utf-8").splitlines() if file.exists() else ():
        try:
            row = json.loads(line)
        except ValueError:
            continue
        found[row["id"]] = row
    return list(found.values())
