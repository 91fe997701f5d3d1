"""Sweeps old and new releases of DeepSpeed, each as if it were the installed one.

Pip installs each release into a separate folder without its dependencies, so torch and everything
else are those of the environment. The release is then imported instead of the installed DeepSpeed,
and `bench_deepspeed.py --small` judges it at a few Points, in float32 or bfloat16. A Point passes,
fails by a known bug of that release, or is counted as unexplained. Exits with 1 if any is, or if a
release does not show a bug that the catalogue's entry says it has. `--write` writes the table into
docs/deepspeed.md.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from _measure import ROOT, finish, machine, show
from _page import write_section
from deepspeed_known import dated, title
from packaging.version import Version

from pytest_trainsafe.fixtures.deepspeed.rules import OLDEST
from pytest_trainsafe.reference_models.deepspeed_bugs.install import install

PAGE = ROOT / "docs" / "deepspeed.md"
SWEEP = Path(__file__).with_name("bench_deepspeed.py")

#: The oldest supported release, the newest one when this was written, and between them the releases
#: in which the catalogue shows its bugs, others that its entries name, and the first one that
#: divides gradients in a hook.
RELEASES = (
    OLDEST,
    "0.15.1",
    "0.16.2",
    "0.17.6",
    "0.18.2",
    "0.18.3",
    "0.18.5",
    "0.18.9",
    "0.19.0",
    "0.19.3",
    "0.19.4",
    "0.19.8",
)

#: Where releases are kept from one run to the next.
CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "trainsafe-deepspeed"


def main() -> None:
    arguments = _arguments()
    facts = machine()
    figures: list[dict[str, Any]] = []
    for release in arguments.release or RELEASES:
        figures.append({"release": release, **swept(install(release, arguments.releases))})
        print(*row(figures[-1]), figures[-1]["bugs"], file=sys.stderr, flush=True)
    rows = [row(figure) for figure in figures]
    show("DeepSpeed's releases", ["release", "pass", "known bug", "unexplained", "s"], rows)
    if arguments.write:
        write_section(PAGE, "releases", section(figures, facts))
    missing = unshown(figures)
    print("\n".join(missing) or "every release shows the bugs that the catalogue dates to it")
    finish("deepspeed_releases", facts, {"releases": figures, "unshown": missing})
    sys.exit(bool(missing) or any(figure["outcomes"]["unexplained"] for figure in figures))


def unshown(figures: list[dict[str, Any]]) -> list[str]:
    """The bugs that releases have by the catalogue's entries, but did not show."""
    return [
        f"{figure['release']} does not show {title(bug)}"
        for figure in figures
        for bug, first, last in dated()
        if first <= Version(figure["release"]) <= last and title(bug) not in figure["bugs"]
    ]


def swept(folder: Path) -> dict[str, Any]:
    """The outcomes of the small sweep with the release in `folder`; SystemExit if it has none."""
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
        raise SystemExit(f"the sweep of {folder.name} did not finish:\n{done.stdout}") from None
    assert found["machine"]["deepspeed"] == folder.name, found["machine"]
    known = Counter(outcome for _, outcome, *_ in found["rows"])
    return {
        "outcomes": found["outcomes"],
        "points": [point for point, *_ in found["rows"]],
        "seconds": sum(found["seconds"]),
        "bugs": {name: n for name, n in known.items() if name not in ("pass", "unexplained")},
    }


def row(figure: dict[str, Any]) -> list[object]:
    """The table row of a release."""
    counts = figure["outcomes"]
    counted = [counts[name] for name in ("pass", "known", "unexplained")]
    return [figure["release"], *counted, f"{figure['seconds']:.0f}"]


def section(figures: list[dict[str, Any]], facts: dict[str, object]) -> str:
    """The page's section: the outcomes of each release, and the releases that show each bug."""
    points = figures[0]["points"]
    lines = [
        f"Written by `python benchmarks/{Path(__file__).name} --write` with torch {facts['torch']}",
        f"on {facts['cores']} cores, load {facts['load']} before.",
        f"Each release is judged at the same {len(points)} Points, over two ranks:",
    ]
    head = ["release", "pass", "fail by a known bug", "unexplained", "seconds"]
    counts = _table(head, [[*map(str, row(figure))] for figure in figures])
    bugs: dict[str, list[str]] = {}
    for figure in figures:
        for bug, count in figure["bugs"].items():
            shown = figure["release"] + (f" ({count} Points)" if count > 1 else "")
            bugs.setdefault(bug, []).append(shown)
    seen = _table(
        ["bug", "shown in"], [[_linked(bug), ", ".join(them)] for bug, them in bugs.items()]
    )
    judged = [f"- `{point}`" for point in points]
    return "\n".join([" ".join(lines), "", *judged, "", *counts, "", *seen])


def _linked(bug: str) -> str:
    """A bug's name, whose first word is a link if it names an entry or a thread of DeepSpeed's."""
    name, _, what = bug.partition(":")
    if re.fullmatch(r"#\d+", name):
        return f"[{name}](https://github.com/deepspeedai/DeepSpeed/issues/{name[1:]}):{what}"
    return f"[{name}](deepspeed-bugs.md#{name}):{what}" if name.startswith("ds-") else bug


def _table(head: list[str], rows: list[list[str]]) -> list[str]:
    return [f"| {' | '.join(each)} |" for each in (head, ["---"] * len(head), *rows)]


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("release", nargs="*", help=f"Releases (default {' '.join(RELEASES)})")
    parser.add_argument("--quick", action="store_true", help="No effect: this is quick already")
    parser.add_argument("--write", action="store_true", help=f"Write {PAGE.relative_to(ROOT)}")
    parser.add_argument(
        "--releases", type=Path, default=CACHE, help=f"The folder of releases (default {CACHE})"
    )
    return parser.parse_args()


if __name__ == "__main__":
    main()
