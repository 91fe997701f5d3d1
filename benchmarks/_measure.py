"""What every benchmark needs: the command line, the machine, medians, peak memory, the last line.

A benchmark prints tables for people and, as its last line, one JSON object for machines.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import re
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")

#: The repository.
ROOT = Path(__file__).resolve().parent.parent


def quick(description: str | None) -> bool:
    """Read the command line; whether `--quick` asks for few repetitions and small cases."""
    return bool(_parser(description).parse_args().quick)


@dataclass(frozen=True, slots=True)
class Options:
    """What is asked of a benchmark that draws.

    `plots` is the folder to draw into, None for no plots.  `figures` are those of an earlier run,
    to be shown and drawn instead of measured.
    """

    quick: bool
    plots: Path | None
    figures: dict[str, Any] | None


def options(description: str | None) -> Options:
    """Read the command line of a benchmark that draws."""
    parser = _parser(description)
    parser.add_argument("--plots", type=Path, metavar="FOLDER", help="Draw the figures as SVG")
    parser.add_argument(
        "--figures", type=Path, metavar="FILE", help="Take the last line of this earlier run"
    )
    asked = parser.parse_args()
    figures = json.loads(asked.figures.read_text().splitlines()[-1]) if asked.figures else None
    return Options(asked.quick, asked.plots, figures)


def _parser(description: str | None) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--quick", action="store_true", help="Fewer repetitions, smaller cases")
    return parser


def machine() -> dict[str, object]:
    """What the figures depend on.  `load` is the one-minute load average before measuring."""
    return {
        "cores": len(os.sched_getaffinity(0)),
        "processor": _processor(),
        "load": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
        "torch": importlib.metadata.version("torch"),
        "pytest": importlib.metadata.version("pytest"),
        "pytest-trainsafe": importlib.metadata.version("pytest-trainsafe"),
    }


def alternate(
    first: Callable[[], T], second: Callable[[], T], count: int
) -> tuple[list[T], list[T]]:
    """Call two things in turn, `count` times each: what slows the machine down slows both."""
    pairs = [(first(), second()) for _ in range(count)]
    return [a for a, _ in pairs], [b for _, b in pairs]


def median(values: Sequence[float]) -> float:
    """The median: a figure that a single disturbed run does not move."""
    return statistics.median(values)


def differences(first: Sequence[float], second: Sequence[float]) -> list[float]:
    """What the first of each pair took more than the second."""
    return [a - b for a, b in zip(first, second, strict=True)]


def ratios(first: Sequence[float], second: Sequence[float]) -> list[float]:
    """How many times the second of each pair the first took."""
    return [a / b for a, b in zip(first, second, strict=True)]


def peak_memory() -> float:
    """The most memory this process has held, in MiB, since it started or `reset_peak_memory`.

    VmHWM, not `ru_maxrss`: that one a process inherits from the parent which forked it.
    """
    return status_kib("VmHWM") / 1024


def reset_peak_memory() -> float:
    """Start measuring `peak_memory` anew; the memory held now, in MiB."""
    Path("/proc/self/clear_refs").write_text("5")
    return status_kib("VmRSS") / 1024


def folder_size(*folders: Path) -> int:
    """Bytes in the files below some folders."""
    files = [file for folder in folders for file in folder.rglob("*") if file.is_file()]
    return sum(file.stat().st_size for file in files)


def show(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print a table: the first column to the left, figures to the right."""
    cells = [list(columns), *([str(cell) for cell in row] for row in rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(columns))]
    print(f"\n{title}")
    for row in cells:
        padded = [cell.rjust(width) for cell, width in zip(row, widths, strict=True)]
        print("  " + "  ".join([row[0].ljust(widths[0]), *padded[1:]]))


def finish(benchmark: str, facts: dict[str, object], figures: dict[str, Any]) -> None:
    """Print the last line: everything that was measured, and on what machine, as JSON."""
    print()
    print(json.dumps({"benchmark": benchmark, "machine": facts, **figures}))


def _processor() -> str:
    found = re.search(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return found[1] if found else platform.machine()


def status_kib(key: str) -> int:
    """A line of this process's status, in KiB."""
    found = re.search(rf"^{key}:\s*(\d+) kB$", Path("/proc/self/status").read_text(), re.MULTILINE)
    assert found is not None, key
    return int(found[1])
