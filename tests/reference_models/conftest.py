"""Two groups of four ranks for all tests of parallel models: starting one costs more than a run.

Ranks that run in turn in one process take two thirds of the CPU of four processes, and train alike
(tests/launch/threads/test_threads_traces.py); jobs that overlap need processes.
"""

from __future__ import annotations

import os

import pytest

from pytest_trainsafe.launch import Launcher, Task, ThreadsLauncher
from tests.support.reference_models.jobs_of_four_ranks import (
    ALONE,
    JOBS,
    run_in_turn,
    run_overlapping,
)
from tests.support.reference_models.rank_double import Outcomes, run_here, run_in_ranks


@pytest.fixture(scope="session")
def parallel(tmp_path_factory: pytest.TempPathFactory, run_launcher: Launcher) -> Outcomes:
    """The outcomes of the parallel models in JOBS, by name."""
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent  # shared by all workers: the first of them starts the group
    folder /= "ranks"
    address = getattr(run_launcher, "address", "")
    in_turn = ThreadsLauncher(address) if address else run_launcher
    tasks = ((in_turn, run_in_turn), (run_launcher, run_overlapping))
    return run_in_ranks(
        [(launcher, Task.of(run, str(folder), world_size=4)) for launcher, run in tasks],
        JOBS,
        folder,
    )


@pytest.fixture(scope="session")
def single() -> Outcomes:
    """The outcomes of runs on a single device in ALONE, by name."""
    return Outcomes(lambda name: run_here(ALONE[name]))
