"""Copies a trace with its tensor events replaced."""

from __future__ import annotations

import copy
from collections.abc import Callable

from pytest_trainsafe.core.tensor_id import TensorId
from pytest_trainsafe.trace.reader import RankTrace, Trace
from pytest_trainsafe.trace.schema import TensorEvent

Tensors = dict[TensorId, TensorEvent]


def with_tensors(trace: Trace, tensors: Callable[[RankTrace], Tensors]) -> Trace:
    """A copy of the trace, on the same files, with `tensors(rank)` as each rank's tensor events."""
    ranks = []
    for rank in trace.ranks:
        adopted = copy.copy(rank)
        adopted.tensors = tensors(rank)
        ranks.append(adopted)
    made = trace.with_ranks(ranks)
    made.problems, made._payloads = trace.problems, trace._payloads
    made.permuted, made.renumbered = trace.permuted, trace.renumbered
    return made
