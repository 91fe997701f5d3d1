"""No module of the package imports itself through others, not even for its types."""

from __future__ import annotations

from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from tests.support.packaging.import_graph import import_graph

#: A module that imports another inside a function, below TYPE_CHECKING, or not at all.
IN_FUNCTION = "def work():\n    from pytest_trainsafe.runs import {}\n"
FOR_TYPES = (
    "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n"
    "    from pytest_trainsafe.runs.{} import Thing\n"
)
BY_PATH = 'PATH = "pytest_trainsafe.runs.{}:Thing"\n'


def circle(graph: dict[str, set[str]]) -> list[str]:
    """The modules of one circle of imports, the first of them again at the end; [] for none."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        found: list[str] = error.args[1]
        return found
    return []


@pytest.fixture
def planted(tmp_path: Path) -> Path:
    """A repository with the modules `one` and `two`, which import nothing."""
    for file in ("fixtures/core.py", "invariants/__init__.py", "pytest_trainsafe/runs/__init__.py"):
        (tmp_path / file).parent.mkdir(parents=True)
        (tmp_path / file).write_text("")
    for name in ("one", "two"):
        (tmp_path / f"pytest_trainsafe/runs/{name}.py").write_text("")
    return tmp_path


def test_no_module_imports_itself_through_others(root: Path) -> None:
    graph = import_graph(root)

    assert "pytest_trainsafe.runs.session" in graph["pytest_trainsafe.runs.group"]  # for its types
    assert "pytest_trainsafe.runs.session" in graph["pytest_trainsafe.fixtures.core"]
    assert circle(graph) == []


@pytest.mark.parametrize("one", [IN_FUNCTION, FOR_TYPES], ids=["function", "types"])
def test_a_circle_is_found_however_its_modules_import_each_other(planted: Path, one: str) -> None:
    (planted / "pytest_trainsafe/runs/one.py").write_text(one.format("two"))
    assert circle(import_graph(planted)) == []

    (planted / "pytest_trainsafe/runs/two.py").write_text(FOR_TYPES.format("one"))

    assert {*circle(import_graph(planted))} == {
        "pytest_trainsafe.runs.one",
        "pytest_trainsafe.runs.two",
    }


def test_an_import_path_in_a_string_makes_no_circle(planted: Path) -> None:
    (planted / "pytest_trainsafe/runs/one.py").write_text(FOR_TYPES.format("two"))

    (planted / "pytest_trainsafe/runs/two.py").write_text(BY_PATH.format("one"))

    assert circle(import_graph(planted)) == []
