"""Functions for every benchmark: the command line, the machine, medians, memory, the last line.

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
    """Read the command line; returns whether `--quick` is given: few repetitions, small cases."""
    return bool(_parser(description).parse_args().quick)


@dataclass(frozen=True, slots=True)
class Options:
    """The command line of a benchmark that draws plots.

    `plots` is the folder to draw into, None for no plots. `figures` are the figures of an earlier
    run, which are shown and drawn instead of measuring; None to measure.
    """

    quick: bool
    plots: Path | None
    figures: dict[str, Any] | None


def options(description: str | None) -> Options:
    """Read the command line of a benchmark that draws."""
    parser = _parser(description)
    parser.add_argument("--plots", type=Path, metavar="FOLDER", help="Draw the figures as SVG")
    parser.add_argument(
        "--figures", type=Path, metavar="FILE", help="Show the output of this earlier run instead"
    )
    asked = parser.parse_args()
    figures = json.loads(asked.figures.read_text().splitlines()[-1]) if asked.figures else None
    return Options(asked.quick, asked.plots, figures)


def _parser(description: str | None) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--quick", action="store_true", help="Fewer repetitions, smaller cases")
    return parser


def machine() -> dict[str, object]:
    """The machine and versions that figures depend on; `load` is the one-minute load average."""
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
    """Call two functions in turn, `count` times each, so that other load slows both equally."""
    pairs = [(first(), second()) for _ in range(count)]
    return [a for a, _ in pairs], [b for _, b in pairs]


def median(values: Sequence[float]) -> float:
    """The median, which a single disturbed run does not change much."""
    return statistics.median(values)


def differences(first: Sequence[float], second: Sequence[float]) -> list[float]:
    """The difference of each pair, first minus second."""
    return [a - b for a, b in zip(first, second, strict=True)]


def ratios(first: Sequence[float], second: Sequence[float]) -> list[float]:
    """The ratio of each pair, first to second."""
    return [a / b for a, b in zip(first, second, strict=True)]


def peak_memory() -> float:
    """The peak memory of this process in MiB, since its start or the last `reset_peak_memory`.

    It reads VmHWM, because a process inherits `ru_maxrss` from the parent that forked it.
    """
    return status_kib("VmHWM") / 1024


def reset_peak_memory() -> float:
    """Resets `peak_memory`, and returns the current memory in MiB."""
    Path("/proc/self/clear_refs").write_text("5")
    return status_kib("VmRSS") / 1024


def cpu_seconds() -> float:
    """The CPU seconds of this process and its descendants; of those that ended, if waited for."""
    waiting, ticks = [os.getpid()], 0
    while waiting:
        folder = Path("/proc", str(waiting.pop()))
        try:
            ticks += sum(map(int, (folder / "stat").read_text().rpartition(")")[2].split()[11:15]))
            for thread in folder.glob("task/*/children"):
                waiting += map(int, thread.read_text().split())
        except OSError:
            continue  # it has ended
    return ticks / os.sysconf("SC_CLK_TCK")


def folder_size(*folders: Path) -> int:
    """The number of bytes in all files of these folders."""
    files = [file for folder in folders for file in folder.rglob("*") if file.is_file()]
    return sum(file.stat().st_size for file in files)


def show(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print a table, with the first column aligned left and the others right."""
    cells = [list(columns), *([str(cell) for cell in row] for row in rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(columns))]
    print(f"\n{title}")
    for row in cells:
        padded = [cell.rjust(width) for cell, width in zip(row, widths, strict=True)]
        print("  " + "  ".join([row[0].ljust(widths[0]), *padded[1:]]))


def finish(benchmark: str, facts: dict[str, object], figures: dict[str, Any]) -> None:
    """Print the last line: the figures and the machine as JSON."""
    print()
    print(json.dumps({"benchmark": benchmark, "machine": facts, **figures}))


def _processor() -> str:
    found = re.search(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return found[1] if found else platform.machine()


def status_kib(key: str) -> int:
    """The value of a key in /proc/self/status, in KiB."""
    found = re.search(rf"^{key}:\s*(\d+) kB$", Path("/proc/self/status").read_text(), re.MULTILINE)
    assert found is not None, key
    return int(found[1])
