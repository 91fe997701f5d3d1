"""Stores the results of `learn` in files, so that an interrupted `learn` can continue.

A file has the invariants of one relation for one set of runs.  Its name is a hash of the relation,
the runs and the source code of `judges.learn`, so that no outdated result is read.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import msgspec
import xxhash

import pytest_trainsafe.judges.learn as package
from pytest_trainsafe.core.untrusted import MALFORMED, read_file
from pytest_trainsafe.judges.learn.events.table import Table
from pytest_trainsafe.judges.learn.fields import FieldError, InvariantFields
from pytest_trainsafe.judges.learn.inference.one_relation import LearnedRelation
from pytest_trainsafe.judges.learn.run import ObservedRun

_MAX_BYTES = 256 * 2**20


class _File(msgspec.Struct):
    invariants: list[InvariantFields]
    dropped: dict[str, int]


class Kept:
    """A folder with the results for one set of runs."""

    def __init__(self, folder: Path, runs: Sequence[ObservedRun]) -> None:
        self._folder = folder
        hashed = xxhash.xxh3_128()
        for source in sorted(Path(package.__file__).parent.rglob("*.py")):
            hashed.update(source.read_bytes())
        for run in runs:
            hashed.update(msgspec.msgpack.encode(run.source))
            for table in run.tables:
                _hash(table, hashed)
        self._runs = hashed.hexdigest()

    def read(self, path: str) -> LearnedRelation | None:
        """The kept result of the relation at an import path; None if there is none to read."""
        try:
            data = read_file(self._file(path), max_bytes=_MAX_BYTES)
            found = msgspec.json.decode(data, type=_File)
            invariants = tuple(each.invariant() for each in found.invariants)
        except (OSError, FieldError, *MALFORMED):
            return None
        return LearnedRelation(invariants, found.dropped)

    def write(self, path: str, result: LearnedRelation) -> None:
        """Write the result of the relation at an import path to its file."""
        fields = [InvariantFields.of(each) for each in result.invariants]
        self._folder.mkdir(parents=True, exist_ok=True)
        target = self._file(path)
        partial = target.with_suffix(f".{os.getpid()}")
        partial.write_bytes(msgspec.json.encode(_File(fields, dict(result.dropped))))
        partial.replace(target)

    def _file(self, path: str) -> Path:
        return self._folder / f"{xxhash.xxh3_128_hexdigest(f'{path} {self._runs}'.encode())}.json"


def _hash(table: Table, hashed: xxhash.xxh3_128) -> None:
    hashed.update(msgspec.msgpack.encode((table.rank, list(table.texts), list(table.metas))))
    for columns in (table.calls, table.changes, table.values, table.steps):
        for name in sorted(columns):
            hashed.update(name.encode())
            hashed.update(columns[name].tobytes())
