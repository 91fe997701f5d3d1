"""Measures the time of a sweep's Point if its reference is cached.

`--trainsafe-sweep tp=1,2 cp=1,2` judges the reference GPT with 2 layers in float64 and float32, in
a separate pytest run. The target is less than 1 s per Point on 2 cores, with less than 30 % of the
time spent while no rank trains: comparisons that overlap with training do not delay the run. The
time to import torch and start the fork server, once per run, is a separate row.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from _measure import ROOT, finish, machine, median, quick, show

#: The first test starts the fork server, which the later tests use.
TESTS = """
import pytest
from pytest_trainsafe import assert_trainsafe
from pytest_trainsafe.reference_models import gpt

def nothing():
    return None

def test_start(torchrun_group):
    torchrun_group.run(nothing, world_size=1)

@pytest.mark.trainsafe(gpt.train, tp=[1], cp=[1])
def test_gpt(candidate_trace, reference_trace):
    assert_trainsafe(candidate_trace, reference_trace)
"""

#: Notes when tests and groups of ranks began and ended, and the summaries of the Points.
PROBE = """
import functools, json, time
import pytest

noted = {"tests": [], "trained": [], "summaries": []}

@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item, nextitem):
    began = time.monotonic()
    result = yield
    noted["tests"].append([item.name, began, time.monotonic()])
    return result

def pytest_runtest_logreport(report):
    if report.when == "teardown":
        noted["summaries"] += [json.loads(v) for k, v in report.user_properties if k == "trainsafe"]

def pytest_collection_finish(session):
    from pytest_trainsafe.runs.session import Session
    record = Session._record

    @functools.wraps(record)
    def timed(*args, **kwargs):
        found = record(*args, **kwargs)
        ended = time.monotonic()
        noted["trained"].append([ended - found.seconds["train"], ended])
        return found

    Session._record = timed

def pytest_unconfigure():
    with open("noted.json", "w") as file:
        json.dump(noted, file)
"""

SWEEP = ("--trainsafe-sweep", "tp=1,2", "cp=1,2")


def main() -> None:
    repetitions = 2 if quick(__doc__) else 7
    facts = machine()
    figures: dict[str, Any] = {"repetitions": repetitions}
    with tempfile.TemporaryDirectory(prefix="trainsafe-sweep-") as temporary:
        folder = Path(temporary)
        (folder / "pytest.ini").write_text("[pytest]\n")
        (folder / "conftest.py").write_text(PROBE)
        (folder / "test_sweep.py").write_text(TESTS)
        for record in ("full", "sketch"):
            run(folder, record)  # records the references
            figures[record] = medians([measured(run(folder, record)) for _ in range(repetitions)])
    for record in ("full", "sketch"):
        show_points(record, figures[record], repetitions)
    finish("sweep", facts, figures)


def run(folder: Path, record: str) -> dict[str, Any]:
    """Makes one pytest run, and returns the notes of the probe."""
    env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    # A separate folder of leases, so that this run does not wait for other runs of this user.
    runtime = folder / "runtime"
    runtime.mkdir(mode=0o700, exist_ok=True)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:hypothesispytest"]
    done = subprocess.run(
        [*command, *SWEEP, f"--trainsafe-record={record}", f"--basetemp={folder / 'base'}"],
        cwd=folder,
        env=env | {"XDG_RUNTIME_DIR": str(runtime), "PYTHONPATH": _path()},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"a clean sweep did not pass, so nothing was measured:\n{done.stdout}")
    noted: dict[str, Any] = json.loads((folder / "noted.json").read_text())
    return noted


def _path() -> str:
    return os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH", ""), str(ROOT)]))


def measured(noted: dict[str, Any]) -> dict[str, Any]:
    """The seconds per Point, and the share of the time in which no rank trained."""
    start, *points = noted["tests"]
    began, ended = points[0][1], points[-1][2]
    spans = [(max(a, began), min(b, ended)) for a, b in noted["trained"] if b > began and a < ended]
    training = covered(spans)
    stages = {
        stage: sum(s["seconds"].get(stage, 0.0) for s in noted["summaries"]) / len(points)
        for stage in ("launch", "train", "compare")
    }
    return {
        "start": start[2] - start[1],
        "points": {name: until - since for name, since, until in points},
        "wall": (ended - began) / len(points),
        "own_share": 1 - training / (ended - began),
        **stages,
    }


def covered(spans: list[tuple[float, float]]) -> float:
    """The length of the union of intervals."""
    total, until = 0.0, float("-inf")
    for begin, end in sorted(spans):
        total += max(end - max(begin, until), 0.0)
        until = max(until, end)
    return total


def medians(runs: list[dict[str, Any]]) -> dict[str, Any]:
    plain = {key: median([one[key] for one in runs]) for key in runs[0] if key != "points"}
    points = {name: median([one["points"][name] for one in runs]) for name in runs[0]["points"]}
    return {**plain, "points": points}


def show_points(record: str, figures: dict[str, Any], repetitions: int) -> None:
    rows = [
        *([name, f"{seconds:.2f}"] for name, seconds in figures["points"].items()),
        ["a Point", f"{figures['wall']:.2f}"],
        ["of which nothing trained", f"{100 * figures['own_share']:.0f} %"],
        *([f"  {stage} of both rungs", f"{figures[stage]:.2f}"] for stage in STAGES),
        ["starting, once a run", f"{figures['start']:.2f}"],
    ]
    title = f"A sweep of 4 Points, reference cached, {record}, medians of {repetitions} runs"
    show(title, ["", "seconds"], rows)


STAGES = ("launch", "train", "compare")


if __name__ == "__main__":
    main()
