"""Records every program of these tests once: one group of two ranks, and one of a single rank."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pytest_trainsafe.launch import Launcher, Task, raise_for_failure
from pytest_trainsafe.trace.reader import Trace
from tests.support.replay.rng_programs import make_spec, record_all

#: Programs of two ranks: the function, its fault, and the Point.
ON_TWO_RANKS: list[tuple[str, str, dict[str, Any]]] = [
    ("train", "", {"dp": 2}),
    ("train", "", {"tp": 2}),
    ("train", "", {"cp": 2}),
    ("train", "", {"dp": 2, "recompute": True}),
    ("train", "one seed for all data-parallel ranks", {"dp": 2}),
    ("train", "one seed for all context-parallel ranks", {"cp": 2}),
    ("train", "one stream in a sharded region", {"tp": 2}),
    ("train", "another seed on each tensor-parallel rank", {"tp": 2}),
    ("draws_its_parameters", "", {"dp": 2}),
    ("draws_its_parameters", "on every rank its own", {"dp": 2}),
    ("draws_its_parameters", "then broadcast", {"dp": 2}),
    ("draws_its_own_shards", "", {"dp": 2}),
    ("overwrites_its_parameters", "", {"dp": 2}),
    ("overwrites_its_parameters", "", {"tp": 2}),
    ("overwrites_its_parameters", "seeded by rank", {"dp": 2}),
    ("overwrites_its_parameters", "seeded by rank", {"tp": 2}),
    ("overwrites_its_parameters", "seeded by rank, only parts", {"tp": 2}),
    ("overwrites_its_parameters", "seeded by rank, then broadcast", {"dp": 2}),
    ("overwrites_its_parameters", "seeded by rank, then wrapped", {"dp": 2}),
    ("overwrites_its_parameters", "unwritten memory", {"dp": 2}),
    ("drops_dtensors", "", {"tp": 2}),
    ("drops_dtensors", "one stream in a sharded region", {"tp": 2}),
    ("drops_dtensors", "another seed on each rank", {"tp": 2}),
]

#: Programs of one rank, and the references of those above.
ALONE: list[tuple[str, str, dict[str, Any]]] = [
    ("train", "", {}),
    ("train", "", {"recompute": True}),
    ("train", "recomputes without the random state", {"recompute": True}),
    ("train", "drops in evaluation mode", {}),
    ("train", "evaluates in training mode", {}),
    ("train", "evaluates from the training's stream", {}),
    ("overwrites_its_parameters", "", {}),
    ("overwrites_its_parameters", "only parts", {}),
    ("loads_with_workers", "", {}),
    ("loads_with_workers", "a copy in every worker", {}),
    ("loads_with_workers", "one global seed", {}),
]

Recorded = Callable[..., Trace]


@pytest.fixture(scope="session")
def recorded(tmp_path_factory: pytest.TempPathFactory, run_launcher: Launcher) -> Recorded:
    """A recorded trace: `recorded("train", "the fault", dp=2)`."""
    folder = tmp_path_factory.mktemp("rng")
    traces: dict[tuple[str, str, str], Path] = {}

    def specs(programs: list[tuple[str, str, dict[str, Any]]]) -> list[dict[str, Any]]:
        made = []
        for name, fault, point in programs:
            trace = folder / f"trace{len(traces)}"
            traces[name, fault, str(sorted(point.items()))] = trace
            made.append(make_spec(name, fault, point, trace))
        return made

    for programs, size in ((ON_TWO_RANKS, 2), (ALONE, 1)):
        task = Task.of(record_all, specs(programs), world_size=size)
        raise_for_failure(run_launcher.run(task, timeout=120, workdir=folder))

    def find(name: str, fault: str = "", **point: Any) -> Trace:
        return Trace.open(traces[name, fault, str(sorted(point.items()))])

    return find
