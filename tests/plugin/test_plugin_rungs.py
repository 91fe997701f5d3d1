"""A rung that a project adds by a hook: where its name counts, and what is refused."""

from __future__ import annotations

import pytest

from pytest_trainsafe.core.rungs import table
from pytest_trainsafe.errors import ArgumentError

RUNGS = """
from pytest_trainsafe.core.rungs.rung import Rung

MINE = Rung("mine", "float64")
LOST = Rung("lost", "float64", arithmetic_path="rungs:ARITHMETIC")
"""


@pytest.fixture(autouse=True)
def _table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "_added", dict(table._added))


@pytest.fixture
def project(pytester: pytest.Pytester) -> pytest.Pytester:
    pytester.makepyfile(rungs=RUNGS)
    pytester.syspathinsert()
    return pytester


def write_hook(project: pytest.Pytester, rungs: object) -> None:
    project.makeconftest(f"def pytest_trainsafe_rungs(config):\n    return {rungs!r}\n")


def test_a_rung_of_the_hook_is_a_dtype_of_the_setting(project: pytest.Pytester) -> None:
    write_hook(project, {"mine": "rungs:MINE"})

    config = project.parseconfigure("-q", "--trainsafe-dtype", "mine,float64")

    assert config.getoption("trainsafe_dtype") == "mine,float64"
    assert "mine" in table.rung_names()
    assert table.rung_named("mine").exact


def test_an_unknown_rung_is_refused_with_a_list_of_the_known_ones(project: pytest.Pytester) -> None:
    write_hook(project, {"mine": "rungs:MINE"})

    with pytest.raises(pytest.UsageError, match=r"float16, exact, mine, not 'other'"):
        project.parseconfigure("-q", "--trainsafe-dtype", "other")


@pytest.mark.parametrize(
    ("rungs", "words"),
    [
        (["rungs:MINE"], "must return a dict such as"),
        ({"mine": "rungs.py"}, "returned 'rungs.py' for 'mine'; it must return the import path of"),
        ({"A rung": "rungs:MINE"}, "returned the name 'A rung'; the name of a rung starts"),
        ({"float32": "rungs:MINE"}, "returned 'float32', which is already the name of a rung"),
        ({"auto": "rungs:MINE"}, "returned 'auto', which is already the name of a rung"),
    ],
)
def test_an_invalid_return_value_of_the_rungs_hook_is_a_usage_error(
    project: pytest.Pytester, rungs: object, words: str
) -> None:
    write_hook(project, rungs)

    with pytest.raises(pytest.UsageError, match=words):
        project.parseconfigure("-q")


@pytest.mark.parametrize(
    ("name", "path", "words"),
    [
        ("mine", "no_module:MINE", "cannot be imported from 'no_module:MINE'"),
        ("mine", "rungs:OTHER", "cannot be imported from 'rungs:OTHER'"),
        ("mine", "rungs:Rung", "is not a Rung with the name 'mine'"),
        ("other", "rungs:MINE", "is not a Rung with the name 'other'"),
    ],
)
def test_an_import_path_that_leads_to_no_such_rung_is_an_error(
    project: pytest.Pytester, name: str, path: str, words: str
) -> None:
    table.add_rungs({name: path})

    with pytest.raises(ArgumentError, match=words):
        table.rung_named(name)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("mine", "has epsilon=0, but the arithmetic '.*:FLOATING' has exact=False"),
        ("lost", "has no arithmetic at 'rungs:ARITHMETIC'"),
    ],
)
def test_an_arithmetic_that_does_not_fit_the_rung_is_an_error(
    project: pytest.Pytester, name: str, words: str
) -> None:
    table.add_rungs({name: f"rungs:{name.upper()}"})

    with pytest.raises(ArgumentError, match=words):
        _ = table.rung_named(name).arithmetic
