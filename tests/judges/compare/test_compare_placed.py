"""The page shows which stage has which modules, and over which axes each line communicates."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import msgspec
import pytest

from pytest_trainsafe.core.point import Point
from pytest_trainsafe.judges.compare.ladder.collectives import MOST_LINES, REST, collectives
from pytest_trainsafe.judges.compare.ladder.stages import stages
from pytest_trainsafe.report.panels import Table
from pytest_trainsafe.trace.facts import CollectiveEvent, Reduction
from pytest_trainsafe.trace.reader import Trace
from pytest_trainsafe.trace.schema import ModuleEvent
from tests.support.compare.traces import training, write

LAYERS = tuple(f"decoder.layers.{n}{part}" for n in range(4) for part in ("", ".norm", ".up"))
WHOLE = ("", "embedding", "embedding.words", "decoder", *LAYERS, "decoder.norm", "head")


def trace(folder: Path, point: Point, *stages: tuple[str, ...]) -> Trace:
    """A trace in which each stage has these modules."""
    written = write(folder, training(steps=1), point)
    ranks = [
        dataclasses.replace(
            rank,
            modules={
                n: ModuleEvent(n, "Layer", "/me/a.py:1") for n in stages[rank.coordinates["pp"]]
            },
        )
        for rank in written.ranks
    ]
    return Trace(written.path, written.manifest, ranks)


def of_layers(first: int, last: int) -> tuple[str, ...]:
    return tuple(n for n in LAYERS if first <= int(n.split(".")[2]) <= last)


@pytest.fixture
def reference(tmp_path: Path) -> Trace:
    return trace(tmp_path / "reference", Point.of(), WHOLE)


def table(folder: Path, reference: Trace, *held: tuple[str, ...]) -> Table:
    found = stages(trace(folder / "candidate", Point.of(pp=2, tp=2), *held), reference)
    assert found is not None
    return found


FIRST = ("", "embedding", "embedding.words", "decoder", *of_layers(0, 1))


def test_each_stage_has_its_ranks_and_outermost_modules(tmp_path: Path, reference: Trace) -> None:
    last = ("", "decoder", *of_layers(2, 3), "decoder.norm", "head")
    found = table(tmp_path, reference, FIRST, last)

    assert found.rows == (
        ("pp=0", "ranks 0, 1", "embedding, decoder.layers.0 to 1"),
        ("pp=1", "ranks 2, 3", "decoder.layers.2 to 3, decoder.norm, head"),
    )
    assert "several" not in found.note


def test_modules_on_no_stage_and_on_several_are_named(tmp_path: Path, reference: Trace) -> None:
    last = ("", "embedding", "embedding.words", "decoder", *of_layers(2, 2), "decoder.norm", "head")
    found = table(tmp_path, reference, FIRST, last)

    assert found.rows[2] == ("no stage", "", "decoder.layers.3")
    assert found.states == ("", "", "wrong")
    assert "embedding.words" in str(found.rows[0][2])
    assert "embedding.words" in str(found.rows[1][2])
    assert found.note.endswith("On several stages: embedding.words.")


def test_other_names_than_those_of_the_reference_are_not_said_to_be_missing(
    tmp_path: Path, reference: Trace
) -> None:
    assert len(table(tmp_path, reference, ("a", "a.0"), ("a", "a.1")).rows) == 2


def test_without_a_pipeline_there_are_no_stages(tmp_path: Path, reference: Trace) -> None:
    assert stages(trace(tmp_path / "tp", Point.of(tp=2), WHOLE), reference) is None


GRADIENT = CollectiveEvent(
    "all_reduce", (0, 1), "/me/a.py:5", step=0, reduce="SUM", name="norm.weight.grad"
)
REDUCES = msgspec.structs.replace(GRADIENT, ranks=(0, 2), site="/me/a.py:7", name="")


MADE = Reduction("all_reduce(SUM)", ("tp",), "/me/a.py:5", "/me/b.py:1", 4)


def called(folder: Path, *events: CollectiveEvent | Reduction) -> Table | None:
    return collectives(write(folder, training(steps=1), Point.of(tp=2, dp=2), notes=events))


def test_each_line_that_communicates_has_its_axes_and_what_it_is_given(tmp_path: Path) -> None:
    inside = msgspec.structs.replace(GRADIENT, microbatch=0, ranks=(0, 1, 2, 3), name="")
    outside = msgspec.structs.replace(GRADIENT, step=None, site="/me/setup.py:3")
    backward = msgspec.structs.replace(inside, backward=True)
    found = called(tmp_path, outside, GRADIENT, GRADIENT, REDUCES, inside, backward, MADE)

    assert found is not None
    assert found.rows == (
        (
            "/me/a.py:5",
            "all_reduce(SUM)",
            "tp",
            REST,
            "norm.weight.grad",
            "/me/b.py:1",
            2,
        ),
        ("/me/a.py:7", "all_reduce(SUM)", "dp", REST, "", "", 1),
        ("/me/a.py:5", "all_reduce(SUM)", "tp and dp", "forward", "", "", 1),
        ("/me/a.py:5", "all_reduce(SUM)", "tp and dp", "backward", "", "", 1),
    )


def test_only_so_many_lines_are_listed_and_none_without_a_call(tmp_path: Path) -> None:
    more = [
        msgspec.structs.replace(GRADIENT, site=f"/me/a.py:{n}") for n in range(1, MOST_LINES + 3)
    ]
    found = called(tmp_path / "many", *more)
    assert found is not None
    assert len(found.rows) == MOST_LINES
    assert "2 more lines" in found.note
    assert called(tmp_path / "none") is None


def test_a_line_that_sums_tensors_and_a_norm_has_a_row_for_each(tmp_path: Path) -> None:
    norm = msgspec.structs.replace(REDUCES, shape=())
    of_norm = Reduction("all_reduce(SUM)", ("dp",), REDUCES.site, "/me/b.py:2", 1, "norm")
    of_gradients = Reduction("all_reduce(SUM)", ("dp",), REDUCES.site, "/me/b.py:1", 8)
    tensor = msgspec.structs.replace(REDUCES, shape=(2, 4))
    found = called(tmp_path, tensor, norm, of_gradients, of_norm)
    assert found is not None
    assert found.rows == (
        ("/me/a.py:7", "all_reduce(SUM)", "dp", REST, "", "/me/b.py:1", 1),
        ("/me/a.py:7", "all_reduce(SUM)", "dp", REST, "one number", "/me/b.py:2", 1),
    )
