"""Observes a whole script, which calls no `ctx`, and writes what it did to a table's file."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager

from pytest_trainsafe.judges.learn.events.events import Plain
from pytest_trainsafe.judges.learn.events.file import TableWriter
from pytest_trainsafe.judges.learn.instrument.observation import Observation
from pytest_trainsafe.judges.learn.instrument.steps import Sample, Steps
from pytest_trainsafe.trace.run_spec import Observe


def observed(
    observe: Observe, writer: TableWriter, fixed: Mapping[str, Plain]
) -> AbstractContextManager[object]:
    """Observes what runs inside; each step of the first optimizer ends a step.

    `fixed` has the fields of every record.
    """
    steps = Steps(Sample(observe.every, observe.warm_up), automatic=True)
    observation = Observation(
        observe.apis, observe.variables, (writer,), steps, fixed, observe.contents
    )
    return observation.active(observe.operators)
