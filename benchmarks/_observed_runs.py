"""Observes the healthy programs and those of silent errors, in one process or on two ranks."""

from __future__ import annotations

import contextlib
import importlib
import pkgutil
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
import torch

from pytest_trainsafe.core.point import Point
from pytest_trainsafe.judges.learn.events.file import FILE, observed, read_table
from pytest_trainsafe.judges.learn.instrument.observation import observe
from pytest_trainsafe.judges.learn.run import ObservedRun
from pytest_trainsafe.launch import GroupFailure
from pytest_trainsafe.reference_models import healthy, silent_errors, toolkit
from pytest_trainsafe.reference_models.healthy import Healthy
from pytest_trainsafe.reference_models.silent_errors import SilentError
from pytest_trainsafe.runs.session import Session
from pytest_trainsafe.runs.specs import spec_of
from pytest_trainsafe.sweep.case import Case
from pytest_trainsafe.sweep.program import resolve
from pytest_trainsafe.trace.run_spec import Observe

#: The packages that are observed: PyTorch, and the library that the programs share.
APIS = ("torch", "pytest_trainsafe.reference_models.toolkit")

#: What is said of the versions that a run had.
VERSIONS = {"torch": torch.__version__.partition("+")[0]}


def load_toolkit() -> None:
    """Import every module of the library that the programs share, so that all are observed."""
    for module in pkgutil.iter_modules(toolkit.__path__):
        importlib.import_module(f"{toolkit.__name__}.{module.name}")


def observed_healthy(
    session: Session,
    each: Healthy,
    seed: int = 0,
    variant: Mapping[str, Any] | None = None,
    apis: Sequence[str] = APIS,
) -> ObservedRun:
    """The observed run of a healthy program; `variant` are arguments that it changes."""
    train = healthy.program(each)
    if each.axis:
        return of_ranks(session, each.name, train, {each.axis: 2}, seed, variant or {}, apis)
    return _of_process(each.name, train, {"seed": seed, **(variant or {})}, apis)


def observed_error(
    session: Session, error: SilentError, faulty: bool, seed: int = 0
) -> ObservedRun:
    """The observed run of a silent error's program, with the error if `faulty`."""
    train = silent_errors.program(error)
    arguments: dict[str, Any] = {"faulty": faulty}
    if not error.axis:
        return _of_process(error.name, train, {**arguments, "seed": seed})
    if error.raises and faulty:
        arguments["patience"] = 5.0
    return of_ranks(session, error.name, train, {error.axis: 2}, seed, arguments)


def _of_process(
    name: str, train: Callable[..., Any], arguments: Mapping[str, Any], apis: Sequence[str] = APIS
) -> ObservedRun:
    # A faulty program may raise KeyError; what it did before is observed.
    with observe(apis) as observation, contextlib.suppress(KeyError):
        train(**arguments)
    return ObservedRun(name, [observation.table], VERSIONS)


def of_ranks(
    session: Session,
    name: str,
    train: Callable[..., Any],
    sizes: Mapping[str, Any],
    seed: int,
    arguments: Mapping[str, Any],
    apis: Sequence[str] = APIS,
) -> ObservedRun:
    """The run of a program in ranks, at the Point with these sizes."""
    settings = session.settings._replace(seed=seed)
    program = resolve(train)
    candidate = {**program.traits.candidate, **arguments}
    case = Case(Point.of(dict(sizes)), program, settings, {}, candidate)
    dtype = str(case.point.get("dtype", "float32"))
    spec = msgspec.structs.replace(
        spec_of(case, "candidate", dtype), observe=Observe(apis=tuple(apis)), rng=False
    )
    root = session.folders.root
    before = {*root.iterdir()} if root.exists() else set()
    try:
        trace = session.scheduler.run(spec).result().trace
    except GroupFailure:
        (folder,) = {*root.iterdir()} - before
        path = folder / "trace"
        files = [path / f"rank{rank}" / FILE for rank in range(case.point.world_size)]
        tables = [read_table(file, rank, below=path) for rank, file in enumerate(files)]
        return ObservedRun(name, tables, VERSIONS)
    tables = [observed(trace, rank) for rank in range(case.point.world_size)]
    return ObservedRun(name, tables, VERSIONS)
