"""One group of four ranks for all tests of parallel models: starting it costs more than a run."""

from __future__ import annotations

import os

import pytest

from pytest_trainsafe.launch import Launcher, Task
from tests.support.reference_models.jobs_of_four_ranks import ALONE, JOBS, run_all
from tests.support.reference_models.rank_double import Outcomes, run_here, run_in_ranks


@pytest.fixture(scope="session")
def parallel(tmp_path_factory: pytest.TempPathFactory, run_launcher: Launcher) -> Outcomes:
    """The outcomes of the parallel models in JOBS, by name."""
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent  # shared by all workers: the first of them starts the group
    folder /= "ranks"
    task = Task.of(run_all, str(folder), world_size=4)
    return run_in_ranks(run_launcher, task, JOBS, folder)


@pytest.fixture(scope="session")
def single() -> Outcomes:
    """The outcomes of runs on a single device in ALONE, by name."""
    return Outcomes(lambda name: run_here(ALONE[name]))
