"""What the two benchmarks of mutants share: their options, their rows and their survivors."""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from _measure import ROOT, show
from _mutants import Mutation

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


def options(description: str | None, file: str, count: int, resume: str) -> argparse.ArgumentParser:
    """The options of both benchmarks.

    `file` is the name of the file of rows below build/, `count` the size of the sample, and
    `resume` says which mutants `--resume` judges.
    """
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="A sample of 20")
    parser.add_argument(
        "--sample", type=int, default=count, help=f"How many mutants (default {count})"
    )
    parser.add_argument("--seed", type=int, default=0)
    rows = ROOT / "build" / file
    parser.add_argument("--rows", type=Path, default=rows, help="Where the rows are kept")
    parser.add_argument("--resume", action="store_true", help=resume)
    parser.add_argument("--show", action="store_true", help="Only print the tables of the rows")
    parser.add_argument("--only", metavar="ID", help="Judge one mutant and print its report")
    parser.add_argument("--jobs", type=int, default=2)
    return parser


def parsed(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """The command line; `--quick` limits the sample."""
    asked = parser.parse_args()
    if asked.quick:
        asked.sample = min(asked.sample, 20)
    return asked


def chosen(found: Sequence[Mutation], id: str) -> Mutation:
    """The mutation with an id.  Raises SystemExit if there is none."""
    for mutation in found:
        if mutation.id == id:
            return mutation
    raise SystemExit(f"there is no mutation {id!r}; give the id of one, as in the rows")


def show_survivors(rows: Sequence[dict[str, Any]], noticed: Collection[str]) -> list[str]:
    """Print the survivors by their arguments, and return the ids of those without an argument.

    A row survived if its outcome is not in `noticed`.
    """
    arguments = argued()
    survivors = [row["id"] for row in rows if row["outcome"] not in noticed]
    unexplained = [id for id in survivors if id not in arguments]
    classes = Counter(arguments[id] for id in survivors if id in arguments)
    show("Survivors, by what docs/mutants.md says", ["", "mutants"], sorted(classes.items()))
    for id in unexplained:
        print(f"  SURVIVED, no argument: {id}")
    print(f"\n{len(rows)} mutants, {len(survivors)} survived, {len(unexplained)} unexplained")
    return unexplained
