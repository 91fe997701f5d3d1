"""The example of docs/metamorphic.md passes, and reports the fault that its program can plant."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from pytest_trainsafe import TrainsafeFailure
from tests.support.metamorphic.relation_runs import fixture_of

ROOT = Path(__file__).parents[3]
EXAMPLE = ROOT / "docs/examples/metamorphic"


@pytest.fixture
def example(monkeypatch):
    """The test module of the example, imported as pytest does."""
    monkeypatch.syspath_prepend(EXAMPLE.parent)
    return importlib.import_module("metamorphic.test_metamorphic")


def test_the_example_satisfies_the_relations_of_its_test(example, tmp_path):
    trained = fixture_of(example.train, tmp_path)
    [parametrized] = [
        mark for mark in example.test_trains_the_same.pytestmark if mark.name == "parametrize"
    ]

    for relation in parametrized.args[1]:
        example.test_trains_the_same(trained, relation)


def test_the_planted_fault_of_the_example_is_reported_as_the_page_shows(example, tmp_path):
    trained = fixture_of(example.train, tmp_path, {"per_microbatch": True})

    with pytest.raises(TrainsafeFailure) as failure:
        example.test_trains_the_same(trained, "split")

    page = (ROOT / "docs/metamorphic.md").read_text(encoding="utf-8")
    shown = page.partition("```\ntrainsafe: ")[2].partition("```")[0]
    assert str(failure.value).startswith(f"trainsafe: {shown}")


def test_the_page_shows_the_code_of_the_example():
    page = (ROOT / "docs/metamorphic.md").read_text(encoding="utf-8")
    test = (EXAMPLE / "test_metamorphic.py").read_text(encoding="utf-8")
    program = (EXAMPLE / "train.py").read_text(encoding="utf-8")

    body = test[test.index("@pytest.mark.parametrize") :]
    declared = program[program.index("@relations.hold(") : program.index("def train(")]

    assert body in page
    assert declared in page
