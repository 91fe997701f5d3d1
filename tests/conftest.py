"""For every test: pytest's own test harness, and one thread for torch.

Before torch is imported: tensors of tests are small, workers are as many as cores, and threads that
wait for each other made a training of a second one of a minute.
"""

import gc
import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import hypothesis
import pytest

from pytest_trainsafe.fixtures.core import get_session

os.environ.setdefault("OMP_NUM_THREADS", "1")

# Inner runs in a job of GitHub Actions must not write annotations and the summary of that job.
for name in ("GITHUB_ACTIONS", "GITHUB_STEP_SUMMARY", "GITHUB_WORKSPACE"):
    os.environ.pop(name, None)

pytest_plugins = ["pytester"]

# `suite` is what every run uses: few examples, the same ones each time, and no deadline, since the
# machine's load is not the code's fault.  `--hypothesis-profile=thorough` tries many.
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
    {"candidate_trace", "reference_trace", "torchrun_group", "warm", "recorded", "pytester"}
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests that start processes, which `make quick` leaves out."""
    for item in items:
        if STARTS.intersection(getattr(item, "fixturenames", ())):
            item.add_marker("processes")


def pytest_collection_finish() -> None:
    """Keep the garbage collector off the modules and the items, which live as long as the process.

    They are half a million objects, and inner runs of pytest collect garbage when they end.

    hypothesis creates its random number generator when it runs its first example, and warns if the
    collector finds no object that refers to it.  The collector does not search frozen objects, such
    as hypothesis' modules, so the first example runs before they are frozen.
    """
    hypothesis.find(hypothesis.strategies.none(), lambda _: True)
    gc.collect()
    gc.freeze()


@pytest.fixture
def never_hangs() -> Iterator[None]:
    """Fail a test that waits, long after any machine would have been done with it.

    A test of many examples calls `signal.alarm(120)` in each, so that it is each that must end.
    """

    def ring(*_: object) -> None:
        raise AssertionError("this took more than two minutes")

    before = signal.signal(signal.SIGALRM, ring)
    signal.alarm(120)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture
def localizing(candidate_trace):
    """Have the code at fault looked for after a failure of this test; a budget of its own."""
    from pytest_trainsafe.judge.localize.budget import Budget, budget_of, replace_budget

    case, session = candidate_trace.case, candidate_trace.runs.session
    candidate_trace.case = replace(case, settings=replace(case.settings, localize=600.0))
    budget = Budget()
    before = budget_of(session)
    replace_budget(session, budget)
    yield budget
    replace_budget(session, before)


@pytest.fixture
def without_hypothesis(pytester, monkeypatch):
    """Keep hypothesis and syrupy out of inner runs, where they take half a second of each.

    After `pytester`, which clears the variable for its own sake.
    """
    monkeypatch.setenv("PYTEST_ADDOPTS", "-p no:hypothesispytest -p no:syrupy")


@pytest.fixture
def shared_fork_server(request, monkeypatch):
    """Have inner runs fork their ranks from the fork server of this run, which has started once.

    For tests whose claim is not about the server.
    """
    session = get_session(request)
    address = getattr(session.launchers.of(script=False, stop=session.stop), "address", "")
    if address:
        inner = Path(__file__).parent / "inner"
        monkeypatch.syspath_prepend(inner)
        monkeypatch.setenv("PYTHONPATH", str(inner), prepend=os.pathsep)
        monkeypatch.setenv("PYTEST_PLUGINS", "shared_fork_server")
        monkeypatch.setenv("TRAINSAFE_TESTS_FORK_SERVER", address)


@pytest.fixture
def project(pytester, write_ini, without_hypothesis):
    """A pytester directory with `program.py` in reach."""
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
    """Write the project's ini file anew, with lines of the test's own."""

    def write(*lines):
        # Not syrupy: it cannot end a session that `pytester.getitems` has begun.
        addopts = "addopts = --strict-markers --strict-config -p no:syrupy"
        own = ["[pytest]", "pythonpath = .", addopts]
        return pytester.makeini("\n".join([*own, *lines]))

    return write
