"""A table's file is read back unchanged, up to the last complete part, or refused."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import xxhash

from pytest_trainsafe.errors import TraceError
from pytest_trainsafe.judges.learn.events.events import Call, Change, TensorFacts, Value
from pytest_trainsafe.judges.learn.events.file import FORMAT, TableWriter, read_table
from pytest_trainsafe.judges.learn.events.table import Table, TableBuilder


class _Both:
    """Gives each event to a writer, in parts, and to a builder of the whole table."""

    def __init__(self, path: Path) -> None:
        self.writer, self.builder = TableWriter(path, 3), TableBuilder(3)

    def __getattr__(self, name: str) -> Any:
        def forward(event: Any) -> None:
            getattr(self.writer, name)(event)
            getattr(self.builder, name)(event)

        return forward


def _filled(path: Path) -> _Both:
    both = _Both(path)
    outer = Call("lib.outer", {"step": 0})
    both.entered(outer)
    for step in range(3):
        inner = Call("lib.inner", {"step": step, "user.x": 0.5}, parent=outer)
        inner.values["arg.x"] = Value("int", 2**70)
        both.entered(inner)
        facts = TensorFacts(2**64 - 1, (2, step), "float32", "cpu", 1.5)
        weight = Value("torch.Tensor", None, facts, 7)
        both.changed(Change("model.w", "torch.Tensor", "data", weight, {}, None, inner))
        inner.values["result"] = Value("str", f"text {step}")
        both.left(inner)
        both.step_ended(step)
        both.writer.flush()  # the outer call is open across parts
    outer.exception = "builtins.ValueError"
    both.left(outer)
    return both


def _equal(one: Table, two: Table) -> bool:
    names = ("calls", "changes", "values", "steps")
    return (
        (one.rank, list(one.texts), list(one.metas)) == (two.rank, list(two.texts), list(two.metas))
    ) and all(
        np.array_equal(getattr(one, name)[key], column, equal_nan=column.dtype.kind == "f")
        for name in names
        for key, column in getattr(two, name).items()
    )


def test_a_table_written_in_parts_is_read_back_unchanged(tmp_path: Path) -> None:
    both = _filled(tmp_path / "o")
    sealed = both.writer.close()
    assert sealed is not None
    assert sealed.parts == 4
    assert _equal(read_table(tmp_path / "o", 3, sealed=sealed), both.builder.table())


def test_a_file_with_a_cut_last_part_is_read_up_to_the_part_before(tmp_path: Path) -> None:
    both = _filled(tmp_path / "o")
    both.writer.flush()
    data = (tmp_path / "o").read_bytes()
    (tmp_path / "o").write_bytes(data[:-3])
    table = read_table(tmp_path / "o", 3)
    assert table.steps["step"].tolist() == [0, 1, 2]
    assert table.calls["exit"][0] == -1, "the return of the outer call is lost"


def test_a_table_larger_than_the_limit_of_its_file_is_not_sealed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pytest_trainsafe.judges.learn.events.file.MAX_FILE", 2000)
    both = _filled(tmp_path / "o")
    assert both.writer.close() is None
    assert (tmp_path / "o").stat().st_size <= 2000


def _record_of(path: Path) -> dict[str, Any]:
    """A table as one part, as plain data that tests change."""
    both = _filled(path)
    table = both.builder.take_part()
    kinds = ("calls", "changes", "values", "steps", "returns")
    return {
        "texts": list(table.texts),
        "metas": [dict(meta) for meta in table.metas],
        "columns": {
            kind: {key: column.copy() for key, column in getattr(table, kind).items()}
            for kind in kinds
        },
    }


def _written(path: Path, record: dict[str, Any]) -> None:
    plain = {**record, "columns": {}}
    for kind, columns in record["columns"].items():
        plain["columns"][kind] = {
            key: column if isinstance(column, bytes) else column.tobytes()
            for key, column in columns.items()
        }
    data = msgspec.msgpack.encode(plain)
    path.write_bytes(FORMAT + struct.pack("<IQ", len(data), xxhash.xxh3_64_intdigest(data)) + data)


def test_a_part_that_the_test_encodes_itself_is_readable(tmp_path: Path) -> None:
    _written(tmp_path / "new", _record_of(tmp_path / "o"))
    assert read_table(tmp_path / "new", 3).calls["entry"].tolist() == [0, 1, 5, 9]


@pytest.mark.parametrize(
    ("table", "column", "row", "value"),
    [
        ("calls", "api", 0, 10**6),
        ("calls", "parent", 1, 1),
        ("calls", "meta", 0, -1),
        ("calls", "values", 0, 2**62),
        ("calls", "values", 1, 2),
        ("calls", "arguments", 1, 2**31 - 1),
        ("calls", "results", 1, -1),
        ("calls", "exit", 1, 0),
        ("calls", "entry", 1, 7),
        ("calls", "thread", 0, -1),
        ("changes", "object", 0, -1),
        ("changes", "after", 0, 10**9),
        ("changes", "by", 0, 3),
        ("values", "type", 0, -2),
        ("values", "place", 1, -1),
        ("values", "shape", 0, 0),
        ("values", "bits", 0, 255),
        ("values", "identity", 0, -1),
        ("steps", "position", 0, 2**62),
        ("steps", "step", 0, -1),
    ],
)
def test_an_invalid_value_in_a_column_is_refused(
    tmp_path: Path, table: str, column: str, row: int, value: int
) -> None:
    record = _record_of(tmp_path / "o")
    record["columns"][table][column][row] = value
    _written(tmp_path / "bad", record)
    with pytest.raises(TraceError, match="is damaged"):
        read_table(tmp_path / "bad", 3)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda r: r["texts"].append("x" * 2000), "length"),
        (lambda r: r["metas"].append({"step": "y" * 300}), "length"),
        (lambda r: r.update(more=1), "unknown field"),
        (lambda r: r["columns"].pop("steps"), "columns of the file's steps"),
        (lambda r: r["columns"]["calls"].update(api=b"abc"), "middle of a row"),
        (lambda r: r["columns"]["calls"].update(api=b"\0" * 4), "different lengths"),
        (lambda r: r["columns"]["returns"].update({
            key: np.array([99]).astype(column.dtype)
            for key, column in r["columns"]["returns"].items()
        }), "never began"),
        (lambda r: r["texts"].__setitem__(r["texts"].index(str(2**70)), "1e9"), "type int"),
    ],
)  # fmt: skip
def test_a_part_with_an_invalid_structure_is_refused(
    tmp_path: Path, change: Any, message: str
) -> None:
    record = _record_of(tmp_path / "o")
    change(record)
    _written(tmp_path / "bad", record)
    with pytest.raises(TraceError, match=message):
        read_table(tmp_path / "bad", 3)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"not a table",
        FORMAT + struct.pack("<IQ", 2**31, 0),
        FORMAT + struct.pack("<IQ", 1, 0) + b"x",
    ],
)
def test_a_file_without_a_valid_header_and_part_is_refused(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "bad").write_bytes(data)
    with pytest.raises(TraceError, match="is damaged"):
        read_table(tmp_path / "bad", 0)
