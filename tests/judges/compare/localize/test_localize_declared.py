"""A wrongly declared layout is located where it is declared: at an attribute or an annotation."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from pytest_trainsafe.core.layout import Shard
from pytest_trainsafe.core.point import Point
from pytest_trainsafe.judges.compare.compare import compare
from pytest_trainsafe.judges.compare.declarations.misdeclared import misdeclared
from pytest_trainsafe.judges.compare.fault.located import Located
from pytest_trainsafe.judges.compare.judgement import Advice, RungJudgement
from pytest_trainsafe.judges.compare.localize.search import wrong_line
from pytest_trainsafe.judges.compare.rung import RungTraces
from pytest_trainsafe.trace.facts import Annotations, SetUp, Site
from pytest_trainsafe.trace.reader import Trace
from pytest_trainsafe.trace.schema import ModuleEvent
from tests.support.compare.traces import Bench
from tests.support.localize.blamed_traces import PROGRAM, described, noting

CANDIDATE: Any = SimpleNamespace(case=SimpleNamespace(program=PROGRAM))
WATCH = Site("watch", "/me/fit.py:12"), Annotations(given=True)
PASSED = "/me/fit.py:12", "passes the annotations to ctx.watch"


def cut_wrongly(rung: RungTraces, path: str, source: str) -> RungTraces:
    """The rung in which `source` declares that the tensors of `path` are cut along dimension 0."""
    ranks = []
    for rank in rung.candidate.ranks:
        tensors = dict(rank.tensors)
        for id, event in rank.tensors.items():
            if id.path == path:
                layout = (Shard(0, "tp"),)
                tensors[id] = msgspec.structs.replace(event, layout=layout, layout_source=source)
        ranks.append(dataclasses.replace(rank, tensors=tensors))
    trace = rung.candidate
    return dataclasses.replace(rung, candidate=Trace(trace.path, trace.manifest, ranks))


@pytest.fixture(scope="module")
def located(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Located | None]:
    """The line found for a wrong declaration of `path` by `source`, which explains the failure."""
    folder: Path = tmp_path_factory.mktemp("declared")
    healthy = Bench(folder).rung(Point.of(tp=2), dtype="float64")

    def found(
        path: str, source: str, *facts: msgspec.Struct, code: str = "/me/linear.py:7", given=WATCH
    ) -> Located | None:
        modules = ModuleEvent("fc2", "RowLinear", code), ModuleEvent("", "Model", "")
        rung = noting(described(cut_wrongly(healthy, path, source), *modules), *given, *facts)
        comparison = compare(rung)
        wrong = misdeclared(rung, comparison, ())
        assert wrong is not None
        assert wrong.left is None
        judged = RungJudgement("float64", "float64", comparison, [], [])
        judged.advice, judged.explained = Advice(misdeclared=wrong), True
        return wrong_line(CANDIDATE, rung, judged)

    return found


def test_a_layout_that_an_attribute_declares_is_located_in_the_parameters_module(located) -> None:
    found = located("fc2.weight", "attribute", SetUp("fc2", "/me/apply.py:100"))
    assert found.source == "/me/linear.py:7"
    assert found.what == "module class RowLinear; fc2 is set up at /me/apply.py:100"


@pytest.mark.parametrize(
    ("path", "source"),
    [("fc2.weight", "parameters: fc2.weight"), ("fc1.output", "modules: fc1")],
)
def test_a_layout_that_annotations_declare_is_located_where_they_are_passed(
    located, path: str, source: str
) -> None:
    found = located(path, source)
    assert (found.source, found.what) == PASSED


def test_an_attribute_in_unknown_code_is_not_located_where_annotations_are_passed(located) -> None:
    assert located("fc2.weight", "attribute", code="") is None


def test_a_layout_that_a_file_declares_is_located_at_the_entry_in_it(
    located, tmp_path: Path
) -> None:
    path = tmp_path / "layouts.yaml"
    path.write_text("parameters:\n  fc1.weight: {tp_dim: 0}\n  fc2.weight: {tp_dim: 0}\n")
    given = WATCH[0], Annotations(str(path), given=True)
    source = "parameters: fc2.weight"
    found = located("fc2.weight", source, given=given)
    assert (found.source, found.what) == (f"{path}:3", source)
