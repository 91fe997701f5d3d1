"""The dtype by whose rounding a rung is judged follows from the casts of the program."""

from __future__ import annotations

import msgspec
import pytest

from pytest_trainsafe.core.rungs import table
from pytest_trainsafe.runs.rounding import deciding_cast, rounding_of
from pytest_trainsafe.trace.facts import Cast
from pytest_trainsafe.trace.reader import Trace
from pytest_trainsafe.trace.schema import NoteEvent
from tests.support.compare.traces import Bench, training, write

NARROWED = Cast("float32", "/src/loss.py:12")
QUANTISED = Cast("float8", "/src/cast.py:7")


@pytest.mark.parametrize(
    ("dtype", "notes", "rounding", "where"),
    [
        ("float64", [], "float64", ""),
        ("bfloat16", [], "bfloat16", ""),
        ("float64", [NARROWED], "float32", "/src/loss.py:12"),
        # In float64, no value is so near the boundary of two float8 codes that rounding decides.
        ("float64", [QUANTISED], "float64", ""),
        # In float32, some values are.
        ("float64", [NARROWED, QUANTISED], "float8", "/src/cast.py:7"),
        ("float32", [QUANTISED], "float8", "/src/cast.py:7"),
        ("bfloat16", [QUANTISED], "float8", "/src/cast.py:7"),
    ],
)
def test_the_rounding_dtype_of_a_rung_follows_from_the_casts_of_the_program(
    bench: Bench, dtype: str, notes: list[Cast], rounding: str, where: str
) -> None:
    reference = write(bench.path(), training(dtype), dtype=dtype, notes=notes)

    assert rounding_of(reference) == rounding
    assert deciding_cast(reference).partition(" ")[2] == where


HALVED = Cast("bfloat16", "/src/train.py:5")
SHORTENED = Cast("float16", "/src/train.py:6")
AUTOCAST = NoteEvent("autocast", "bfloat16")


@pytest.mark.parametrize(
    ("own", "measuring", "rounding"),
    [
        # The float64 Run takes the same cast, so that it does not show its rounding.
        ([HALVED], [HALVED], "bfloat16"),
        # A cast of the float32 Run alone: the distance from the float64 Run shows its rounding.
        ([HALVED], [], "float32"),
        # Autocast rounds every layer, and one distance does not show what it may turn.
        ([AUTOCAST, HALVED], [AUTOCAST], "bfloat16"),
        # Another dtype than that of autocast.
        ([AUTOCAST, SHORTENED], [AUTOCAST], "float32"),
        # Without a float64 Run, nothing else shows it.
        ([HALVED], None, "bfloat16"),
        # A cast to the dtype of the Run itself narrows nothing.
        ([], [NARROWED], "float32"),
    ],
)
def test_a_cast_counts_below_float64_if_no_wider_run_shows_its_rounding(
    bench: Bench,
    own: list[Cast | NoteEvent],
    measuring: list[Cast | NoteEvent] | None,
    rounding: str,
) -> None:
    reference = write(bench.path(), training("float32"), dtype="float32", notes=own)
    wide = None
    if measuring is not None:
        wide = write(bench.path(), training("float64"), dtype="float64", notes=measuring)

    assert rounding_of(reference, wide) == rounding


def test_no_cast_rounds_exact_numbers(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(table._added, "packed", "tests.support.trace.packed_numbers:RUNG")
    reals = write(bench.path(), training("float64"), dtype="float64", notes=[QUANTISED])
    spec = msgspec.structs.replace(reals.manifest.spec, dtype="packed")
    manifest = msgspec.structs.replace(reals.manifest, spec=spec)
    reference = Trace(reals.path, manifest, reals.ranks)

    assert rounding_of(reference) == "packed"
    assert deciding_cast(reference) == ""
