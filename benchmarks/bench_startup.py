"""Measures the time that the installed plugin adds to a pytest run that does not use it.

An empty run (one trivial test) is repeated with the plugin and without it (`-p no:trainsafe`), in
turns. The targets are at most 20 ms in the median, and that torch is not imported.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from _measure import alternate, differences, finish, machine, median, quick, show

#: Without hypothesis' plugin, which takes half a second that is not to be measured here.
PYTEST = [sys.executable, "-m", "pytest", "-q", *("-p", "no:hypothesispytest")]
WITHOUT = ["-p", "no:trainsafe"]

#: Allows Python to keep compiled modules, as users do; else every run would compile the plugin.
COMPILED = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}

PROBE = """
import json, sys

def pytest_unconfigure():
    found = [name for name in ("torch", "pytest_trainsafe.plugin") if name in sys.modules]
    open("imported.json", "w").write(json.dumps(found))
"""


def main() -> None:
    pairs = 3 if quick(__doc__) else 20
    facts = machine()
    with tempfile.TemporaryDirectory(prefix="trainsafe-startup-") as temporary:
        folder = Path(temporary)
        (folder / "pytest.ini").write_text("[pytest]\n")
        (folder / "test_one.py").write_text("def test_one():\n    pass\n")
        with_plugin, without = alternate(
            lambda: run(folder), lambda: run(folder, *WITHOUT), pairs + 1
        )
        imported = [imported_in(folder), imported_in(folder, *WITHOUT)]
    # The first pair is dropped: it compiles modules and fills the disk cache.
    wall, cpu = (
        differences([a[i] for a in with_plugin[1:]], [b[i] for b in without[1:]]) for i in (0, 1)
    )
    rows = []
    for name, times in (("wall", 0), ("CPU", 1)):
        active, bare = (median([run[times] for run in runs[1:]]) for runs in (with_plugin, without))
        more = wall if times == 0 else cpu
        rows.append(
            [name, *(f"{1000 * s:.1f}" for s in (active, bare, median(more), min(more), max(more)))]
        )
    columns = ["ms", "with", "without", "difference", "least", "most"]
    show(f"An empty pytest run, medians of {pairs} pairs", columns, rows)
    print(f"\n  torch imported in the run with the plugin: {'torch' in imported[0]}")
    print(f"  plugin active with, without: {[PLUGIN in names for names in imported]}")
    finish(
        "startup",
        facts,
        {
            "pairs": pairs,
            "wall_difference_ms": 1000 * median(wall),
            "cpu_difference_ms": 1000 * median(cpu),
            "torch_imported": "torch" in imported[0],
            "plugin_active": [PLUGIN in names for names in imported],
        },
    )


PLUGIN = "pytest_trainsafe.plugin"


def run(folder: Path, *options: str) -> tuple[float, float]:
    """Wall and CPU seconds of one run."""
    began = time.perf_counter()
    command = [*PYTEST, *options]
    process = subprocess.Popen(command, cwd=folder, env=COMPILED, stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    wall = time.perf_counter() - began
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{PYTEST} failed with {process.returncode}")
    return wall, used.ru_utime + used.ru_stime


def imported_in(folder: Path, *options: str) -> list[str]:
    """Which of torch and the plugin a run with these options has imported by its end."""
    (folder / "conftest.py").write_text(PROBE)
    run(folder, *options)
    found: list[str] = json.loads((folder / "imported.json").read_text())
    return found


if __name__ == "__main__":
    main()
