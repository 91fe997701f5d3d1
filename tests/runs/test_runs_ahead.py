"""A test's Runs are launched during the test before it only if no setup could change them."""

from __future__ import annotations

import os

import pytest

from pytest_trainsafe.launch.console.console import Console
from pytest_trainsafe.runs.ahead import NEXT, look

HEADER = """
import pytest

@pytest.fixture
def own():
    pass

@pytest.fixture(scope="session")
def shared():
    pass

swept = pytest.mark.trainsafe("program:train", tp=[1])

@swept
def test_first(candidate_trace, reference_trace, shared):
    pass

"""


def following(project: pytest.Pytester, source: str) -> str | None:
    """The id of the Point that is noted as next while the first test runs."""
    first, second, *_ = project.getitems(HEADER + source)
    look(first, second)
    noted = first.config.stash[NEXT]
    return None if noted is None else noted.case.point.id


@pytest.mark.parametrize(
    "source",
    [
        "@swept\ndef test_next(candidate_trace, reference_trace): pass",
        "@swept\ndef test_next(reference_trace, candidate_trace, tmp_path, capsys): pass",
        "@swept\ndef test_next(candidate_trace, shared): pass",
        "@swept\n@pytest.mark.xfail\ndef test_next(candidate_trace): pass",
    ],
)
def test_the_next_test_is_noted_for_launching_ahead(project: pytest.Pytester, source: str) -> None:
    assert following(project, source) == "tp1"


@pytest.mark.parametrize(
    "source",
    [
        "def test_next(): pass",
        "@swept\ndef test_next(trainsafe): pass",
        "@swept\n@pytest.mark.skip\ndef test_next(candidate_trace): pass",
        "@swept\n@pytest.mark.skipif('False')\ndef test_next(candidate_trace): pass",
        "@swept\n@pytest.mark.xfail(run=False)\ndef test_next(candidate_trace): pass",
        '@pytest.mark.trainsafe("program:train", tp=[3, 1])\ndef test_next(candidate_trace): pass',
    ],
    ids=["unmarked", "no candidate", "skip", "skipif", "not run", "invalid point"],
)
def test_a_test_that_may_not_train_is_not_noted_for_launching_ahead(
    project: pytest.Pytester, source: str
) -> None:
    assert following(project, source) is None


@pytest.mark.parametrize(
    "source",
    [
        "@swept\ndef test_next(candidate_trace, own): pass",
        "@swept\ndef test_next(candidate_trace, monkeypatch): pass",
        "@swept\n@pytest.mark.usefixtures('own')\ndef test_next(candidate_trace): pass",
        (
            "class TestNext:\n"
            "    def setup_method(self): pass\n"
            "    @swept\n"
            "    def test_next(self, candidate_trace): pass"
        ),
    ],
    ids=["fixture", "monkeypatch", "usefixtures", "setup_method"],
)
def test_a_test_with_setup_of_its_own_is_not_noted_for_launching_ahead(
    project: pytest.Pytester, source: str
) -> None:
    assert following(project, source) is None


def test_no_test_is_noted_after_the_last_one(project: pytest.Pytester) -> None:
    [item] = project.getitems(HEADER)
    look(item, None)
    assert item.config.stash[NEXT] is None


def test_no_test_is_noted_while_ranks_write_to_the_terminal(project: pytest.Pytester) -> None:
    first, second = project.getitems(
        HEADER + "@swept\ndef test_next(candidate_trace, shared): pass"
    )
    look(first, second)
    console = Console(os.open(os.devnull, os.O_WRONLY), os.open(os.devnull, os.O_WRONLY))
    try:
        look(second, first)
    finally:
        console.close()
    assert first.config.stash[NEXT] is None
