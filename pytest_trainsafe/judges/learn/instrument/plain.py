"""Observes a plain program, which marks no steps, and writes what it did to a file."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from pytest_trainsafe.errors import TraceError
from pytest_trainsafe.judges.learn.events.events import Listener, Plain
from pytest_trainsafe.judges.learn.events.file import TableWriter
from pytest_trainsafe.judges.learn.instrument.observation import Observation
from pytest_trainsafe.judges.learn.instrument.steps import Sample, Steps
from pytest_trainsafe.trace.run_spec import Observe


@contextlib.contextmanager
def observing(
    path: Path,
    rank: int,
    fixed: Mapping[str, Plain],
    spec: Observe,
    listeners: Sequence[Listener] = (),
) -> Iterator[None]:
    """Observe in a `with` block what `spec` asks for, and write the rank's table to `path`.

    `listeners` receive the events, too.  `fixed` has the facts that are recorded with every call,
    such as the rank.  Raises TraceError if there is more than a file may have.
    """
    writer = TableWriter(path, rank)
    steps = Steps(Sample(spec.every, spec.warm_up), automatic=True)
    receivers = writer, *listeners
    observation = Observation(spec.apis, spec.variables, receivers, steps, fixed, spec.contents)
    with observation.active(spec.operators):
        yield
    if writer.close() is None:
        raise TraceError(f"{path} cannot hold so many calls; let the script train fewer steps")
