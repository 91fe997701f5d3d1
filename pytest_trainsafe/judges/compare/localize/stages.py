"""Handles modules that are cut into pipeline stages, and transfers between stages.

A container of layers (the decoder, the model itself) is called on each of its stages, with
different contents.  The call of the whole container corresponds to the input of the first stage and
the output of the last.  Between two stages the program transfers the output of one, and the next
must receive it bit for bit.  Called by `judges.compare.localize.search` and
`judges.compare.localize.blame`.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Literal

import msgspec

from pytest_trainsafe.align.logical import is_cut_over_stages, logical_tensor
from pytest_trainsafe.core.mesh import elsewhere
from pytest_trainsafe.core.tensor_id import Kind, TensorId
from pytest_trainsafe.trace.reader import Trace
from pytest_trainsafe.trace.schema import TensorEvent

#: Where a container is called: the number of the call, and the pp coordinate.  If ranks have
#: several chunks of the model, later calls are later chunks.
_Place = tuple[int, int]
#: A call of a whole container: step, micro-batch and the container's path.
_Call = tuple[int, int | None, str]

_FLOWS: tuple[Kind, ...] = ("activation", "activation_grad")


def is_input(id: TensorId) -> bool:
    """Whether a recorded tensor is a module's input, or the gradient of one."""
    return id.kind in _FLOWS and id.name.split(".")[0] == "input"


def cut_modules(trace: Trace) -> set[str]:
    """The modules that are cut into several stages with different contents."""
    outputs = {id.module: id for id in trace.ids() if id.kind == "activation" and not is_input(id)}
    return {module for module, id in outputs.items() if is_cut_over_stages(trace, id)}


def ends(cut: set[str], *traces: Trace) -> list[Trace]:
    """Copies of the traces in which each container in `cut` has one call.

    Its input is the first stage's, its output the last stage's.  A stage may return something other
    than the whole module does.  So a tensor of a container is removed from all traces unless the
    first two (candidate and reference) have it, in the same shape if it is an output.
    """
    if not cut:
        return list(traces)
    folded = [_folded(trace, cut) for trace in traces]
    first, second, *_ = folded
    both = {*first.ids()} & {*second.ids()}
    odd = {id for trace in folded for id in trace.ids() if id.module in cut and id not in both}
    odd |= {id for id in both if id.module in cut and not _alike(first, second, id)}
    return [_without(trace, odd) for trace in folded]


def _folded(trace: Trace, cut: set[str]) -> Trace:
    places: defaultdict[_Call, set[_Place]] = defaultdict(set)
    for rank in trace.ranks:
        for id in rank.tensors:
            if id.module in cut and id.kind == "activation" and not is_input(id):
                places[_call(id)].add((id.call, rank.coordinates["pp"]))
    ranks = []
    for rank in trace.ranks:
        tensors = {}
        for id, event in rank.tensors.items():
            if id.module in cut and id.kind in _FLOWS:
                # Without stages, several calls are separate calls of the whole container.
                several = trace.sizes["pp"] == 1 and len(places[_call(id)]) > 1
                end = (min if is_input(id) else max)(places[_call(id)], default=None)
                if several or end != (id.call, rank.coordinates["pp"]):
                    continue
                id = msgspec.structs.replace(id, call=0)
            tensors[id] = event
        ranks.append(replace(rank, tensors=tensors))
    return trace.with_ranks(ranks)


def _alike(candidate: Trace, reference: Trace, id: TensorId) -> bool:
    """Whether a tensor has the same logical shape in both traces.

    True for every input: its layout is not known, and so its shape is not.
    """
    if is_input(id):
        return True
    expected = logical_tensor(reference, id).whole
    if expected is None:
        return False
    found = logical_tensor(candidate, id, tuple(expected.shape)).whole
    return found is not None and found.shape == expected.shape


def _without(trace: Trace, odd: set[TensorId]) -> Trace:
    ranks = [
        replace(rank, tensors={id: e for id, e in rank.tensors.items() if id not in odd})
        for rank in trace.ranks
    ]
    return trace.with_ranks(ranks)


def stage_of(trace: Trace, id: TensorId) -> int:
    """The pp coordinate of the first rank that recorded a tensor."""
    return trace.holders(id)[0][0].coordinates["pp"]


def is_last(trace: Trace, id: TensorId, caller: str) -> bool:
    """Whether an output is the last that was recorded of a model, so that the loss may use it.

    It is not if the outermost module, `caller`, has a recorded output, or if another stage follows.
    """
    rank, _ = trace.holders(id)[0]
    when = id.step, id.microbatch, "activation"
    ran = [
        each.module
        for each in rank.tensors
        if (each.step, each.microbatch, each.kind) == when and not is_input(each)
    ]
    last = rank.coordinates["pp"] == trace.sizes["pp"] - 1
    return last and caller not in ran and ran[-1:] == [id.module]


def wrong_transfer(trace: Trace, module: str, phase: Literal["forward", "backward"]) -> int | None:
    """The pp rank that received a wrong tensor from a neighbouring stage; None if all are right.

    In the forward, a stage's input must be the previous stage's output; in the backward, the
    gradient of a stage's output must be that of the next stage's input.  Tensors are matched by
    shape.
    """
    kind: Kind = "activation" if phase == "forward" else "activation_grad"
    for before, after, receiver in _neighbours(trace, module, kind, phase):
        given, taken = (before, after) if phase == "forward" else (after, before)
        shapes = {(event.shape, event.dtype) for event in given}
        hashes = {event.hash for event in given}
        if any(e.hash not in hashes for e in taken if (e.shape, e.dtype) in shapes):
            return receiver
    return None


def _neighbours(
    trace: Trace, module: str, kind: Kind, phase: str
) -> Iterator[tuple[list[TensorEvent], list[TensorEvent], int]]:
    """Yields, for each micro-batch and each two neighbouring stages, the tensors they exchange.

    The first list has the outputs of `module` on the earlier stage, the second its inputs on the
    later stage; if `kind` is "activation_grad", both lists have gradients.  The int is the pp rank
    that receives: the later stage in the forward, the earlier stage in the backward.
    """
    columns: defaultdict[tuple[tuple[str, int], ...], list[tuple[_Place, TensorId, TensorEvent]]]
    columns = defaultdict(list)
    for rank in trace.ranks:
        at = elsewhere(rank.coordinates, ("pp",))
        for id, event in rank.tensors.items():
            if id.module == module and id.kind == kind:
                columns[at].append(((id.call, rank.coordinates["pp"]), id, event))
    for column in columns.values():
        for call in dict.fromkeys(_call(id) for _, id, _ in column):
            of_call = [entry for entry in column if _call(entry[1]) == call]
            places = sorted({place for place, _, _ in of_call})
            for before, after in itertools.pairwise(places):
                leaving = _at(of_call, before, inputs=False)
                entering = _at(of_call, after, inputs=True)
                yield leaving, entering, (after if phase == "forward" else before)[1]


def _at(
    entries: Iterable[tuple[_Place, TensorId, TensorEvent]], place: _Place, *, inputs: bool
) -> list[TensorEvent]:
    return [event for at, id, event in entries if at == place and is_input(id) == inputs]


def _call(id: TensorId) -> _Call:
    return id.step, id.microbatch, id.module
