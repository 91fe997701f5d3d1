"""Measures the memory that a comparison takes, for the reference GPT with 2, 8 and 16 layers.

A separate process opens the traces of a candidate (tp=2) and of its reference, in float32, with
both measures of rounding, and compares them. "events" is the memory after the traces are opened: a
record of each tensor, without values. "peak" is the largest further private memory (RssAnon) during
the comparison. Mapped files (RssFile), which the kernel can reclaim at any time, are shown
separately as "mapped". The target is a peak that depends on the largest tensor, not on the number
of layers.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

from _measure import finish, folder_size, machine, quick, show, status_kib

from pytest_trainsafe.config.settings import Settings
from pytest_trainsafe.core.point import Point
from pytest_trainsafe.reference_models import gpt
from pytest_trainsafe.runs.session import Session
from pytest_trainsafe.sweep.case import Case
from pytest_trainsafe.sweep.program import resolve

DTYPE = "float32"


def main() -> None:
    depths = (2, 4) if quick(__doc__) else (2, 8, 16)
    facts = machine()
    figures = [measured(layers) for layers in depths]
    columns = ["layers", "tensors", "traces MiB", "events MiB", "peak MiB", "mapped MiB"]
    keys = ("traces_mib", "events_mib", "peak_mib", "mapped_mib")
    rows = [
        [one["layers"], one["tensors"], *(f"{one[key]:.1f}" for key in keys)] for one in figures
    ]
    show("Comparing a candidate (tp=2) with its reference, float32", columns, rows)
    finish("memory", facts, {"depths": figures})


def measured(layers: int) -> dict[str, Any]:
    """The figures of one depth, from a process that only compares."""
    arguments = {"layers": layers}
    settings = Settings(dtypes=(DTYPE,), no_cache=True)
    case = Case(Point.of(tp=2), resolve(gpt.train), settings, arguments, arguments)
    with tempfile.TemporaryDirectory(prefix="trainsafe-memory-") as temporary:
        session = Session(settings, Path(temporary))
        try:
            reference, candidate = session.reference(case), session.candidate(case)
            measures = reference.perturbed(DTYPE), reference.at("float64")
            traces = [candidate.at(DTYPE), reference.at(DTYPE), *measures]
            paths = [str(trace.path) for trace in traces]
            done = subprocess.run(
                [sys.executable, __file__, "compare", *paths], capture_output=True, text=True
            )
        finally:
            session.close()
        if done.returncode:
            raise SystemExit(done.stderr)
        found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        size = folder_size(*map(Path, paths)) / 2**20
        return {"layers": layers, "traces_mib": size, **found}


def compare_alone(paths: list[str]) -> None:
    """Compare the traces at `paths`, and print how much memory that took."""
    import torch

    from pytest_trainsafe.judges.compare.compare import compare
    from pytest_trainsafe.judges.compare.rung import RungTraces
    from pytest_trainsafe.trace.reader import Trace

    torch.set_num_threads(1)
    compare_nothing = status_kib("RssAnon")
    candidate, reference, perturbed, shadow = map(Trace.open, paths)
    rung = RungTraces(DTYPE, candidate, reference, perturbed, shadow)
    opened = status_kib("RssAnon")
    with Sampled() as sampled:
        comparison = compare(rung)
    if comparison.failed or not comparison.compared:
        raise SystemExit(f"a clean program did not pass: {comparison.findings[:1]}")
    figures = {
        "tensors": sum(comparison.compared.values()),
        "events_mib": (opened - compare_nothing) / 1024,
        "peak_mib": (sampled.most["RssAnon"] - opened) / 1024,
        "mapped_mib": (sampled.most["RssFile"] - sampled.before["RssFile"]) / 1024,
    }
    print(json.dumps(figures))


class Sampled:
    """Reads this process's memory every few milliseconds in a thread, and keeps the maximum."""

    KEYS = ("RssAnon", "RssFile")

    def __init__(self) -> None:
        self.before = {key: status_kib(key) for key in self.KEYS}
        self.most = dict(self.before)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look)

    def __enter__(self) -> Sampled:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._over.wait(0.005):
            for key in self.KEYS:
                self.most[key] = max(self.most[key], status_kib(key))


if __name__ == "__main__":
    if sys.argv[1:2] == ["compare"]:
        compare_alone(sys.argv[2:])
    else:
        main()
