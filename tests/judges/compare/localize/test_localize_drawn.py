"""The line to look at for wrong initial values is the one that seeds or draws them."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import msgspec
import pytest
import torch

from pytest_trainsafe.core.finding import Pattern
from pytest_trainsafe.core.point import Point
from pytest_trainsafe.core.tensor_id import INITIAL
from pytest_trainsafe.judges.compare.compare import compare
from pytest_trainsafe.judges.compare.comparison import Comparison
from pytest_trainsafe.judges.compare.fault.clause import Clause, at
from pytest_trainsafe.judges.compare.ladder.look_first import methods_of
from pytest_trainsafe.judges.compare.localize.code.drawn import drawn_at
from pytest_trainsafe.judges.compare.localize.code.lines import Place
from pytest_trainsafe.judges.compare.rung import RungTraces
from pytest_trainsafe.trace.reader import Trace
from pytest_trainsafe.trace.rng.events import DrawEvent
from tests.support.compare.traces import Bench, Record
from tests.support.localize.blamed_traces import noting, with_facts
from tests.support.localize.said import said

CLASS = Place("/me/model.py:3", (Clause("module class Row"), at("fc2 is set up", "/me/train.py:9")))


def wrong(record: Record, at: dict[str, int], part: torch.Tensor) -> torch.Tensor:
    started = record.id.kind == "param" and record.id.step == INITIAL
    return part + 1 if started and record.id.path == "fc2.weight" else part


@pytest.fixture
def rung(tmp_path: Path) -> RungTraces:
    return Bench(tmp_path).rung(Point.of(tp=2), wrong, dtype="float64")


def draw(shape: tuple[int, ...], line: str, before: str = "a.0", seeded: str = "") -> DrawEvent:
    return DrawEvent(
        *("torch cpu", "initialisation", before, "b.0"), shape=shape, at=line, seeded=seeded
    )


def place(rung: RungTraces, failed: Comparison | None = None) -> tuple[str, str]:
    failed = failed or compare(rung)
    first = next(f.where for f in failed.findings if f.verdict == "fail")
    assert first is not None
    return said(drawn_at(failed, first, rung.candidate, rung.reference, CLASS))


@pytest.mark.parametrize(
    ("draws", "line"),
    [
        ([draw((8, 16), "/me/init.py:4"), draw((8,), "/me/init.py:5")], "/me/init.py:4"),
        ([draw((8, 8), "/me/init.py:4")], "/me/init.py:4"),
        ([draw((8, 16), "/me/init.py:4"), draw((8, 8), "/me/init.py:7")], ""),
        ([draw((16, 8), "/me/init.py:4")], ""),
        ([draw((8, 16), f"{torch.__path__[0]}/nn/init.py:4")], ""),
        ([], ""),
    ],
)
def test_the_only_line_that_draws_in_the_parameter_s_shape_comes_first(
    rung: RungTraces, draws: list[DrawEvent], line: str
) -> None:
    found = place(noting(rung, *draws))
    if not line:
        assert found == said(CLASS)
        return
    what = "draws numbers in the shape of fc2.weight; module class Row at /me/model.py:3; fc2 is"
    assert found[0] == line
    assert found[1].startswith(what)


@pytest.mark.parametrize(
    ("seeded", "expected"),
    [("/me/init.py:2", ("/me/init.py:2", "seeds the generator")), ("", ("/me/init.py:4", "draws"))],
)
def test_of_ranks_that_are_seeded_wrongly_it_is_the_line_that_seeds(
    rung: RungTraces, seeded: str, expected: tuple[str, str]
) -> None:
    ranks = [
        dataclasses.replace(
            rank, facts=with_facts(rank, draw((3,), "/me/init.py:4", f"{rank.rank}.0", seeded))
        )
        for rank in rung.candidate.ranks
    ]
    trace = Trace(rung.candidate.path, rung.candidate.manifest, ranks)
    apart = dataclasses.replace(rung, candidate=trace)
    failed = compare(apart)
    pattern = Pattern("seeded apart", "")
    failed.findings[:] = [msgspec.structs.replace(f, pattern=pattern) for f in failed.findings]
    line, what = place(apart, failed)
    assert (line, what.partition(";")[0]) == expected


def test_initial_values_are_made_by_a_constructor_not_by_a_forward() -> None:
    assert methods_of("initial") == ("reset_parameters", "__init__")
