"""A trace with other events of tensors in the place of its own."""

from __future__ import annotations

import copy
from collections.abc import Callable

from pytest_trainsafe.core.tensor_id import TensorId
from pytest_trainsafe.trace.reader import RankTrace, Trace
from pytest_trainsafe.trace.schema import TensorEvent

Tensors = dict[TensorId, TensorEvent]


def with_tensors(trace: Trace, tensors: Callable[[RankTrace], Tensors]) -> Trace:
    """The same trace, its files shared, with these events of each rank."""
    ranks = []
    for rank in trace.ranks:
        adopted = copy.copy(rank)
        adopted.tensors = tensors(rank)
        ranks.append(adopted)
    return Trace(
        trace.path,
        trace.manifest,
        ranks,
        trace.problems,
        trace.permuted,
        trace.renumbered,
        _payloads=trace._payloads,
    )
