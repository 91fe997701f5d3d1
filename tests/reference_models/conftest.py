"""One group of four ranks for all tests of parallel models: starting it costs more than a run."""

from __future__ import annotations

import os

import pytest

from pytest_trainsafe.reference_models.bugs import BUGS
from tests.support.reference_models.jobs_of_four_ranks import (
    DEEP,
    DROPPING,
    JOBS,
    ONE_MIXTURE,
    SMALL,
    TIED,
    arguments,
)
from tests.support.reference_models.rank_double import Job, Outcome, run_here, run_in_ranks


@pytest.fixture(scope="session")
def parallel(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Outcome]:
    """The outcomes of the parallel models in JOBS, by name."""
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent  # shared by all workers: the first of them starts the group
    outcomes = run_in_ranks(4, list(JOBS.values()), folder / "ranks")
    return dict(zip(JOBS, outcomes, strict=True))


@pytest.fixture(scope="session")
def single() -> dict[str, Outcome]:
    """The outcomes of runs on a single device, by name."""
    return {
        **{bug.name: run_here(Job(arguments=arguments(bug), program=bug.program)) for bug in BUGS},
        "default": run_here(Job()),
        "fp8": run_here(Job(arguments={"fp8": True})),
        "clip": run_here(Job(arguments={"clip": 0.5})),
        "cnn": run_here(Job(program="cnn")),
        "lstm": run_here(Job(program="lstm")),
        "small": run_here(Job(arguments=SMALL)),
        "llama": run_here(Job(program="llama")),
        "moe": run_here(Job(arguments=DROPPING, program="moe")),
        "moe clip": run_here(Job(arguments={"clip": 0.5}, program="moe")),
        "deepseek": run_here(Job(arguments=ONE_MIXTURE, program="deepseek")),
        "small llama": run_here(Job(arguments=SMALL, program="llama")),
        "llama bfloat16": run_here(Job(arguments=SMALL, dtype="bfloat16", program="llama")),
        "deep": run_here(Job(arguments=DEEP)),
        "tied": run_here(Job(arguments=TIED)),
        "tied bfloat16": run_here(Job(arguments={**TIED, "steps": 1}, dtype="bfloat16")),
        "deep llama": run_here(Job(arguments=DEEP, program="llama")),
        "small bfloat16": run_here(Job(arguments=SMALL, dtype="bfloat16")),
    }
