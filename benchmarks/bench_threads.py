"""Compares ranks that are threads with ranks that are processes.

Measures an empty group, and a Point of the reference GPT whose reference has been recorded: the
seconds from the launch of its candidate to its verdict, in each of the two ways in turn.
"""

from __future__ import annotations

import tempfile
import time
from functools import partial
from pathlib import Path

import programs
from _measure import alternate, finish, machine, median, quick, ratios, show

from pytest_trainsafe.config.settings import Settings
from pytest_trainsafe.core.point import Point
from pytest_trainsafe.judges.joint import judge_case
from pytest_trainsafe.judges.joint_text import report_of
from pytest_trainsafe.launch import (
    Launcher,
    Task,
    ThreadsLauncher,
    WarmLauncher,
    WarmServer,
    raise_for_failure,
)
from pytest_trainsafe.reference_models import gpt
from pytest_trainsafe.runs.session import Session
from pytest_trainsafe.sweep.case import Case
from pytest_trainsafe.sweep.program import resolve

TIMEOUT = 300.0
#: Processes of 64 ranks would measure the machine's memory.
MOST_PROCESSES = 8


def main() -> None:
    small = quick(__doc__)
    facts = machine()
    repetitions = 2 if small else 7
    sizes = (2, 8) if small else (2, 4, 8, 64)
    points = [Point.of(tp=2)] if small else [Point.of(tp=2), Point.of(tp=2, cp=2)]
    groups = empty_groups(sizes, repetitions)
    judged = judged_points(points, repetitions)
    finish("threads", facts, {"repetitions": repetitions, "groups": groups, "points": judged})


def empty_groups(sizes: tuple[int, ...], repetitions: int) -> list[dict[str, float]]:
    """The milliseconds of a program that does nothing, by the number of ranks."""
    server = WarmServer.start()
    figures = []
    with tempfile.TemporaryDirectory(prefix="trainsafe-threads-") as folder:
        threads, warm = ThreadsLauncher(server.address), WarmLauncher(server.address)
        launched(threads, 1, Path(folder))  # starting the server is not measured
        for ranks in sizes:
            ours = partial(launched, threads, ranks, Path(folder))
            theirs = partial(launched, warm, ranks, Path(folder))
            if ranks > MOST_PROCESSES:
                figures.append({"ranks": ranks, "threads_ms": median([ours() for _ in range(2)])})
                continue
            taken, processes = alternate(ours, theirs, repetitions)
            figures.append(
                {
                    "ranks": ranks,
                    "threads_ms": median(taken),
                    "warm_ms": median(processes),
                    "warm_over_threads": median(ratios(processes, taken)),
                }
            )
    server.close()
    columns = ["ranks", "threads ms", "warm ms", "warm/threads"]
    rows = [[f"{value:.1f}" for value in each.values()] for each in figures]
    show("An empty group", columns, [[*row, *[""] * (4 - len(row))] for row in rows])
    return figures


def launched(launcher: Launcher, ranks: int, folder: Path) -> float:
    """The milliseconds of an empty group, until its outcomes are read."""
    began = time.perf_counter()
    task = Task.of(programs.empty, world_size=ranks)
    raise_for_failure(launcher.run(task, timeout=TIMEOUT, workdir=folder))
    return 1000 * (time.perf_counter() - began)


def judged_points(points: list[Point], repetitions: int) -> list[dict[str, object]]:
    """The seconds of each Point, by launcher."""
    figures: list[dict[str, object]] = []
    with tempfile.TemporaryDirectory(prefix="trainsafe-threads-") as temporary:
        sessions = {
            name: Session(Settings(launcher=name, device="cpu"), Path(temporary, name))
            for name in ("threads", "warm")
        }
        try:
            for point in points:
                ours, theirs = (partial(judged, each, point) for each in sessions.values())
                ours(), theirs()  # records the references
                taken, processes = alternate(ours, theirs, repetitions)
                figures.append(
                    {
                        "point": str(point),
                        "threads_seconds": median(taken),
                        "warm_seconds": median(processes),
                        "warm_over_threads": median(ratios(processes, taken)),
                    }
                )
        finally:
            for session in sessions.values():
                session.close()
    rows = [[str(row["point"]), *(f"{v:.2f}" for v in list(row.values())[1:])] for row in figures]
    columns = ["point", "threads s", "warm s", "warm/threads"]
    show("A Point of the reference GPT, its reference recorded before", columns, rows)
    return figures


def judged(session: Session, point: Point) -> float:
    """The seconds from the launch of the candidate to the verdict, which must be a pass."""
    case = Case(point, resolve(gpt.train), session.settings, {"layers": 2}, {"layers": 2})
    reference, candidate = session.reference(case), session.candidate(case)
    began = time.perf_counter()
    failure = report_of(judge_case(candidate, reference))
    seconds = time.perf_counter() - began
    if failure:
        raise SystemExit(f"a clean program did not pass, so nothing was measured:\n{failure}")
    session.discard(candidate)
    session.retirement.drop(keep=set())  # else the next one would take over these Runs
    return seconds


if __name__ == "__main__":
    main()
