"""Sweeps old and new releases of DeepSpeed, each as if it were the installed one.

A release is put into a folder of its own by pip, without what it depends on: torch and all else
are the environment's.  It is then found before the installed DeepSpeed, as it stands, and
`bench_deepspeed.py --small` judges it: 16 Points, in float32 and bfloat16.  A Point passes, or
fails as a known bug of that release does, or is counted as unexplained.
`--write` writes the table into docs/deepspeed.md.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from _measure import ROOT, finish, machine, show
from _page import write_section

from pytest_trainsafe.fixtures.deepspeed_rules import OLDEST
from pytest_trainsafe.reference_models.deepspeed_bugs.install import install

PAGE = ROOT / "docs" / "deepspeed.md"
SWEEP = Path(__file__).with_name("bench_deepspeed.py")

#: The oldest that is supported, some between, and the newest when this was written.
RELEASES = (OLDEST, "0.16.2", "0.18.2", "0.19.8")


def main() -> None:
    arguments = _arguments()
    facts = machine()
    figures: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="trainsafe-releases-") as temporary:
        for release in arguments.release or RELEASES:
            folder = install(release, arguments.releases or Path(temporary))
            figures.append({"release": release, **swept(folder)})
            print(*row(figures[-1]), file=sys.stderr, flush=True)
    rows = [row(figure) for figure in figures]
    show("DeepSpeed's releases", ["release", "pass", "known bug", "unexplained", "s"], rows)
    if arguments.write:
        write_section(PAGE, "releases", section(figures, facts))
    finish("deepspeed_releases", facts, {"releases": figures})
    sys.exit(any(figure["outcomes"]["unexplained"] for figure in figures))


def swept(folder: Path) -> dict[str, Any]:
    """The outcomes of the small sweep with the release in `folder`.  SystemExit without any."""
    path = os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH", "")]))
    done = subprocess.run(
        [sys.executable, str(SWEEP), "--small"],
        env=os.environ | {"PYTHONPATH": path},
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    try:
        found = json.loads(done.stdout.splitlines()[-1])
    except (IndexError, ValueError):
        raise SystemExit(f"the sweep of {folder.name} came to no end:\n{done.stdout}") from None
    assert found["machine"]["deepspeed"] == folder.name, found["machine"]
    known = Counter(outcome for _, outcome, *_ in found["rows"])
    return {
        "outcomes": found["outcomes"],
        "seconds": sum(found["seconds"]),
        "bugs": {name: n for name, n in known.items() if name not in ("pass", "unexplained")},
    }


def row(figure: dict[str, Any]) -> list[object]:
    """A release's line in a table."""
    counts = figure["outcomes"]
    counted = [counts[name] for name in ("pass", "known", "unexplained")]
    return [figure["release"], *counted, f"{figure['seconds']:.0f}"]


def section(figures: list[dict[str, Any]], facts: dict[str, object]) -> str:
    """The page's section."""
    lines = [
        f"Written by `python benchmarks/{Path(__file__).name} --write`",
        f"with torch {facts['torch']} on {facts['cores']} cores, load {facts['load']} before:",
        "16 Points of each release.",
    ]
    head = ["release", "pass", "fail by a known bug", "unexplained", "seconds", "bugs"]
    rows = [
        [
            *map(str, row(figure)),
            "; ".join(f"{n} Points: {bug}" for bug, n in figure["bugs"].items()),
        ]
        for figure in figures
    ]
    cells = [f"| {' | '.join(each)} |" for each in (head, ["---"] * len(head), *rows)]
    return "\n".join([" ".join(lines), "", *cells])


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("release", nargs="*", help=f"Default: {' '.join(RELEASES)}")
    parser.add_argument("--quick", action="store_true", help="Nothing is left out of so little")
    parser.add_argument("--write", action="store_true", help=f"Write {PAGE.relative_to(ROOT)}")
    parser.add_argument("--releases", type=Path, help="Keep what is installed in this folder")
    return parser.parse_args()


if __name__ == "__main__":
    main()
