"""Measures two test runs side by side on one machine against the same two one after the other.

Both judge the reference GPT at tp=1,2 and cp=1,2 and record their references anew. With "equal"
budgets both have the default of `--trainsafe-slots`; with "unequal" ones the second run allows
itself twice as many ranks, which had made the first wait for a machine without any. The target is
a ratio of at most 1.3.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from _measure import ROOT, finish, machine, median, quick, show

SUITE = [sys.executable, "-m", "pytest", "-q", str(ROOT / "docs" / "examples" / "test_gpt.py")]
SWEEP = ["--trainsafe-sweep", "tp=1,2", "cp=1,2", "--trainsafe-no-cache"]


def main() -> None:
    repetitions = 1 if quick(__doc__) else 3
    facts = machine()
    slots = max(2, len(os.sched_getaffinity(0)))
    rows, figures = [], {}
    with tempfile.TemporaryDirectory(prefix="trainsafe-two-") as temporary:
        for name, second in (("equal", slots), ("unequal", 2 * slots)):
            budgets = [slots, second]
            measured = [
                (apart(Path(temporary), budgets), together(Path(temporary), budgets))
                for _ in range(repetitions)
            ]
            ratios = [both / one for one, both in measured]
            one, both = (median([pair[i] for pair in measured]) for i in (0, 1))
            shown = [one, both, median(ratios), min(ratios), max(ratios)]
            rows.append([name, *(f"{value:.2f}" for value in shown)])
            figures[name] = {"seconds_apart": one, "seconds_together": both, "ratios": ratios}
    columns = ["budgets", "one after the other, s", "side by side, s", "ratio", "least", "most"]
    show(f"Two test runs on one machine, medians of {repetitions}", columns, rows)
    finish("two_suites", facts, {"repetitions": repetitions, "slots": slots, **figures})


def apart(folder: Path, budgets: list[int]) -> float:
    """Seconds of one run after another."""
    began = time.perf_counter()
    for budget in budgets:
        ended(started(folder, budget))
    return time.perf_counter() - began


def together(folder: Path, budgets: list[int]) -> float:
    """Seconds until both runs have ended, if they begin at once."""
    began = time.perf_counter()
    for process in [started(folder, budget) for budget in budgets]:
        ended(process)
    return time.perf_counter() - began


def started(folder: Path, budget: int) -> subprocess.Popen[bytes]:
    options = [*SWEEP, "--trainsafe-slots", str(budget), "-p", "no:cacheprovider"]
    return subprocess.Popen([*SUITE, *options], cwd=folder, stdout=subprocess.DEVNULL)


def ended(process: subprocess.Popen[bytes]) -> None:
    if process.wait(1800):
        raise SystemExit(f"a test run of the reference GPT failed: {process.args!r}")


if __name__ == "__main__":
    main()
