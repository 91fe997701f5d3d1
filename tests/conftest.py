"""Fixtures and settings of all tests: `pytester`, hypothesis profiles, one thread for torch.

The number of threads is set before torch is imported.  Tensors of tests are small and there is a
worker per core; with more threads, a training of one second took a minute.
"""

import gc
import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import hypothesis
import pytest
from _pytest.pytester import SysModulesSnapshot

from pytest_trainsafe.fixtures.core import get_session
from pytest_trainsafe.sweep.point_summary import PROPERTY, PointSummary
from tests.support.end_to_end.sharing import sharing_fork_server

if TYPE_CHECKING:
    from pytest_trainsafe.launch import Launcher

os.environ.setdefault("OMP_NUM_THREADS", "1")

# Processes that tests start import `tests.support` too, also if the package is not installed from
# here.  Last on the path, so that a copy of the package that a test makes comes before ours.
ROOT = str(Path(__file__).parents[1])
SEARCHED = os.environ.get("PYTHONPATH", "").split(os.pathsep)
if ROOT not in SEARCHED:
    os.environ["PYTHONPATH"] = os.pathsep.join([*filter(None, SEARCHED), ROOT])

# Inner runs in a job of GitHub Actions must not write annotations and the summary of that job.
for name in ("GITHUB_ACTIONS", "GITHUB_STEP_SUMMARY", "GITHUB_WORKSPACE"):
    os.environ.pop(name, None)

pytest_plugins = ["pytester"]

# `suite` is the default: few examples, the same ones each time, and no deadline, since the load of
# the machine varies.  `--hypothesis-profile=thorough` tries many examples.
hypothesis.settings.register_profile(
    "suite", max_examples=25, derandomize=True, deadline=None, database=None
)
hypothesis.settings.register_profile("thorough", max_examples=2000, deadline=None, database=None)
hypothesis.settings.load_profile("suite")


#: The program of `project`, which needs no torch.
PROGRAM = """
from pytest_trainsafe.sweep import divides, requires

@requires(divides("heads", "tp"))
def train(ctx, heads=4, layers=2):
    raise AssertionError("nothing here is trained")
"""


#: Fixtures that start ranks, or another pytest.
STARTS = frozenset(
    {"candidate_trace", "reference_trace", "torchrun_group", "warm", "run_launcher", "pytester"}
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests that start processes, which `make quick` leaves out."""
    for item in items:
        if STARTS.intersection(getattr(item, "fixturenames", ())):
            item.add_marker("processes")


def pytest_collection_finish() -> None:
    """Exclude modules and items, which live as long as the process, from garbage collection.

    They are half a million objects, and inner runs of pytest collect garbage when they end.

    hypothesis creates its random number generator when it runs its first example, and warns if the
    collector finds no object that refers to it.  The collector does not search frozen objects, such
    as hypothesis' modules, so the first example runs before they are frozen.
    """
    hypothesis.find(hypothesis.strategies.none(), lambda _: True)
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def _torch_stays() -> Iterator[None]:
    """Keep torch's and NumPy's modules after inner runs of pytest, which forget what they imported.

    Both may be imported once in a process: a second time is an error or a crash.
    """
    restore = SysModulesSnapshot.restore

    def keeping(self: SysModulesSnapshot) -> None:
        kept = {
            n: each for n, each in sys.modules.items() if f"{n}.".startswith(("torch.", "numpy."))
        }
        restore(self)
        sys.modules.update(kept)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SysModulesSnapshot, "restore", keeping)
        yield


@pytest.fixture
def never_hangs() -> Iterator[None]:
    """Fail a test that takes more than two minutes.

    A test with many hypothesis examples calls `signal.alarm(120)` in each example, so that the
    limit applies to each of them.
    """

    def ring(*_: object) -> None:
        raise AssertionError("this took more than two minutes")

    before = signal.signal(signal.SIGALRM, ring)
    signal.alarm(120)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture
def published(request: pytest.FixtureRequest) -> Callable[[], PointSummary]:
    """Returns the summary of this test: its verdict, first Finding, notes and faults so far."""

    def summary() -> PointSummary:
        found: PointSummary = json.loads(dict(request.node.user_properties)[PROPERTY])
        return found

    return summary


@pytest.fixture
def localizing(candidate_trace):
    """Localize the faulty code after a failure of this test, within a separate time budget."""
    from pytest_trainsafe.judges.compare.localize.budget import Budget, budget_of, replace_budget

    case, scheduler = candidate_trace.case, candidate_trace.runs.scheduler
    candidate_trace.case = replace(case, settings=case.settings._replace(localize=600.0))
    budget = Budget()
    before = budget_of(scheduler)
    replace_budget(scheduler, budget)
    yield budget
    replace_budget(scheduler, before)


@pytest.fixture
def without_hypothesis(pytester, monkeypatch):
    """Disable hypothesis and syrupy in inner runs, each of which they slow down by half a second.

    Requested after `pytester`, which clears PYTEST_ADDOPTS.
    """
    monkeypatch.setenv("PYTEST_ADDOPTS", "-p no:hypothesispytest -p no:syrupy")


@pytest.fixture(scope="session")
def _torch() -> None:
    """Import the judges before `pytester`, which forgets the imports of a test.

    A second import of the judges takes half a second, and semantics are registered once.
    """
    from pytest_trainsafe import assertions  # noqa: F401
    from pytest_trainsafe.arithmetic.table import table
    from pytest_trainsafe.judges.registry import judges
    from pytest_trainsafe.report.run import failing  # noqa: F401

    judges(())
    table()


@pytest.fixture(scope="session")
def run_launcher(_torch, request) -> "Launcher":
    """The launcher of this run, whose fork server has already started.

    For tests that do not test the fork server: starting one takes seconds of CPU.
    """
    groups = get_session(request).groups
    return groups.launchers.of(script=False, stop=groups.stop)


@pytest.fixture
def shared_fork_server(run_launcher):
    """Let inner runs fork their ranks from the fork server of this run.

    For tests that do not test the fork server.
    """
    with sharing_fork_server(run_launcher):
        yield


@pytest.fixture
def project(pytester, write_ini, without_hypothesis):
    """A pytester directory with an importable `program.py`."""
    pytester.makepyfile(program=PROGRAM)
    write_ini()
    return pytester


@pytest.fixture
def swept(project):
    """The project with one test over tp and cp, and one over layers."""
    project.makepyfile(
        test_swept="""
        import pytest

        @pytest.mark.trainsafe("program:train", tp=[1, 2], cp=[1, 2])
        def test_mesh(trainsafe):
            assert trainsafe.point.world_size in (1, 2, 3, 4)

        @pytest.mark.trainsafe("program:train", layers=[2, 8])
        def test_layers(trainsafe):
            assert trainsafe.point.world_size == 1
        """
    )
    return project


@pytest.fixture
def write_ini(pytester):
    """A function that overwrites the project's ini file, with additional lines."""

    def write(*lines):
        # Not syrupy: it cannot end a session that `pytester.getitems` has begun.
        addopts = "addopts = --strict-markers --strict-config -p no:syrupy"
        own = ["[pytest]", "pythonpath = .", addopts]
        return pytester.makeini("\n".join([*own, *lines]))

    return write
