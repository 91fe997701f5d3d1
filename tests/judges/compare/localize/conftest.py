"""A localisation of the fault in a test's candidate, as the ladder makes after a failure."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pytest_trainsafe.align.calls import renumbered
from pytest_trainsafe.fixtures.core import get_session
from pytest_trainsafe.judges.compare.localize.budget import Deadline
from pytest_trainsafe.judges.compare.localize.search import Search
from pytest_trainsafe.judges.compare.rung import RungTraces


@pytest.fixture(autouse=True)
def _in_turn(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks are threads of one process: these programs are so small that processes cost more."""
    monkeypatch.setattr(get_session(request).groups.launchers, "choice", "threads")


@pytest.fixture
def search(candidate_trace, reference_trace) -> Callable[..., Search]:
    """Makes a localisation in one dtype, whether or not the candidate failed."""

    def made(dtype: str = "float64") -> Search:
        rung = RungTraces(
            dtype=dtype,
            candidate=renumbered(candidate_trace.at(dtype), reference_trace.at(dtype)),
            reference=reference_trace.at(dtype),
            perturbed=reference_trace.perturbed(dtype),
            shadow=None if dtype == "float64" else reference_trace.at("float64"),
        )
        return Search(candidate_trace, reference_trace, rung, Deadline(600, lambda: 0.0))

    return made
