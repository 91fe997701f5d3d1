"""Takes declared layouts away from a candidate, as if its annotations were missing."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import msgspec
import torch

from pytest_trainsafe.core.layout import Layout, Partial, Placement
from pytest_trainsafe.core.tensor_id import TensorId
from pytest_trainsafe.judges.compare.rung import RungTraces
from pytest_trainsafe.trace.reader import Trace
from tests.support.compare.traces import Edit, Record

Keep = Callable[[TensorId, Placement], bool]


def undeclared(rung: RungTraces, keep: Keep = lambda id, placement: False) -> RungTraces:
    """The rung without the declared placements that `keep` does not keep."""
    ranks = []
    for rank in rung.candidate.ranks:
        tensors = {}
        for id, event in rank.tensors.items():
            raw = id.kind == "param_grad"  # the recorder knows that these are terms over cp
            layout: Layout = tuple(
                p for p in event.layout if keep(id, p) or (raw and isinstance(p, Partial))
            )
            source = "modules: *" if any(keep(id, p) for p in layout) else "default"
            tensors[id] = msgspec.structs.replace(event, layout=layout, layout_source=source)
        ranks.append(dataclasses.replace(rank, tensors=tensors))
    trace = rung.candidate
    return dataclasses.replace(rung, candidate=Trace(trace.path, trace.manifest, ranks))


def terms(kind: str, module: str, axis: str) -> Edit:
    """Each rank of `axis` holds a term of a sum, and everything else is right."""

    def edit(record: Record, at: dict[str, int], part: torch.Tensor) -> torch.Tensor:
        if (record.id.kind, record.id.module) != (kind, module):
            return part
        return record.tensor.to(part.dtype) * (0.25 if at[axis] else 0.75)

    return edit


def without_gradient(rung: RungTraces, module: str) -> RungTraces:
    """The rung of a program whose loss is not computed from the output of `module`."""

    def cut(trace: Trace) -> Trace:
        ranks = [
            dataclasses.replace(
                rank,
                tensors={
                    id: event
                    for id, event in rank.tensors.items()
                    if (id.kind, id.module) != ("activation_grad", module)
                },
            )
            for rank in trace.ranks
        ]
        return Trace(trace.path, trace.manifest, ranks)

    return dataclasses.replace(rung, candidate=cut(rung.candidate), reference=cut(rung.reference))
