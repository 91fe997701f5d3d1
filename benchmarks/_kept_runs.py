"""Caches observed runs on disk, so that benchmarks of learning and checking do not repeat them.

The name of a cached run contains the program, its seed, its configuration and a hash of the code
that the run depends on.  If the observer or a program changes, the runs are made again; docstrings
and comments do not count.
"""

from __future__ import annotations

import ast
import hashlib
import inspect
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import torch
from _measure import ROOT
from _observed_runs import APIS, observed_error, observed_healthy, of_ranks

from pytest_trainsafe.judges.learn.events.events import Listener
from pytest_trainsafe.judges.learn.events.file import TableWriter, read_table
from pytest_trainsafe.judges.learn.events.table import Table, replay
from pytest_trainsafe.judges.learn.run import ObservedRun
from pytest_trainsafe.reference_models import healthy, silent_errors
from pytest_trainsafe.reference_models.healthy import Healthy
from pytest_trainsafe.reference_models.silent_errors import SilentError
from pytest_trainsafe.runs.session import Session

#: The sources that every run depends on.  Of the folders in _PROGRAMS, a run depends only on its
#: own program.
_SOURCES = (
    *("pytest_trainsafe/record", "pytest_trainsafe/frameworks"),
    *("pytest_trainsafe/judges/learn/events", "pytest_trainsafe/judges/learn/instrument"),
    *("reference_models", "benchmarks/_observed_runs.py"),
)
_PROGRAMS = ("healthy", "silent_errors")

#: What may have a docstring.
_DESCRIBED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


class KeptRuns:
    """Runs of the corpus by program, seed and configuration, each observed at most once."""

    def __init__(self, session: Session, folder: Path = ROOT / ".bench/observed") -> None:
        self._session, self._folder, self._code = session, folder, _hash_of_sources()
        self.made = 0

    def healthy(
        self,
        each: Healthy,
        seed: int = 0,
        variant: Mapping[str, Any] | None = None,
        apis: Sequence[str] = APIS,
    ) -> ObservedRun:
        """A healthy program's run; `variant` has arguments that make it another configuration."""
        others = apis if apis != APIS else ()
        key = ("healthy", each.name, seed, dict(variant or {}), *others)
        folder = self._folder_of(key, healthy.program(each))
        found = _read(folder, each.name) or self._write(
            folder, observed_healthy(self._session, each, seed, variant, apis)
        )
        return replace(found, setting=f"seed {seed}, {sorted((variant or {}).items())}")

    def error(self, error: SilentError, faulty: bool, seed: int = 0) -> ObservedRun:
        """The healthy or the faulty run of a silent error."""
        key = ("error", error.name, faulty, seed)
        folder = self._folder_of(key, silent_errors.program(error))
        kept = _read(folder, error.name)
        return kept or self._write(folder, observed_error(self._session, error, faulty, seed))

    def of_ranks(
        self,
        name: str,
        train: Callable[..., Any],
        sizes: Mapping[str, object],
        apis: Sequence[str] = APIS,
        seed: int = 0,
        arguments: Mapping[str, object] | None = None,
    ) -> ObservedRun:
        """The run of a program in ranks, at the Point with these sizes."""
        others = (seed, arguments) if seed or arguments else ()
        key = ("ranks", name, sorted(sizes.items()), *(apis if apis != APIS else ()), *others)
        folder = self._folder_of(key, train)
        kept = _read(folder, name)
        return kept or self._write(
            folder, of_ranks(self._session, name, train, sizes, seed, arguments or {}, apis)
        )

    def read(self, key: Sequence[object], source: Path, program: str) -> ObservedRun | None:
        """The run of a program outside of the corpus, if it was kept; `source` is its file."""
        return _read(self._folder_at(key, source), program)

    def keep(self, key: Sequence[object], source: Path, run: ObservedRun) -> ObservedRun:
        """Keep the run of a program outside of the corpus, for `read`."""
        return self._write(self._folder_at(key, source), run)

    def _write(self, folder: Path, run: ObservedRun) -> ObservedRun:
        self.made += 1
        partial = folder.with_name(f"{folder.name}.{os.getpid()}")
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        for table in run.tables:
            write_table(table, partial / f"rank{table.rank}.bin")
        (partial / "versions.json").write_bytes(msgspec.json.encode(dict(run.versions)))
        shutil.rmtree(folder, ignore_errors=True)
        partial.rename(folder)
        return run

    def _folder_of(self, key: Sequence[object], train: Callable[..., Any]) -> Path:
        return self._folder_at(key, Path(inspect.getfile(inspect.unwrap(train))))

    def _folder_at(self, key: Sequence[object], source: Path) -> Path:
        text = repr((*key, _code(source), self._code)).encode()
        return self._folder / f"{key[1]}-{hashlib.blake2b(text, digest_size=8).hexdigest()}"


def _read(folder: Path, program: str) -> ObservedRun | None:
    if not folder.is_dir():
        return None
    count = len(list(folder.glob("rank*.bin")))
    tables = [read_table(folder / f"rank{rank}.bin", rank) for rank in range(count)]
    versions = msgspec.json.decode((folder / "versions.json").read_bytes(), type=dict[str, str])
    return ObservedRun(program, tables, versions)


def write_table(table: Table, path: Path) -> None:
    """Write a table that is in memory to a file."""
    writer = TableWriter(path, table.rank)
    listener: Listener = writer
    replay(table, listener)
    assert writer.close() is not None, f"{path} is larger than a file may be"


def _hash_of_sources() -> str:
    hashed = hashlib.blake2b(torch.__version__.encode(), digest_size=8)
    for source in _SOURCES:
        root = ROOT / source
        for file in sorted(root.rglob("*.py")) if root.is_dir() else [root]:
            if file.relative_to(root).parts[:1] not in [(name,) for name in _PROGRAMS]:
                hashed.update(_code(file).encode())
    return hashed.hexdigest()


def _code(file: Path) -> str:
    """The syntax tree of a module without its docstrings, as text."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, _DESCRIBED) and ast.get_docstring(node, clean=False) is not None:
            del node.body[0]
    return ast.dump(tree)
