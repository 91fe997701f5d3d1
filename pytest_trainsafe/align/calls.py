"""Renumbers the calls of a module that several pipeline stages call, as if one model made them.

Each stage counts its calls from 0.  If all stages together make as many calls as the reference,
the calls form one sequence and are not replicas of each other; an example is an embedding that the
last stage calls once more for multi-token prediction.  Called by the ladder before a rung is
judged.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping

import msgspec

from pytest_trainsafe.align.with_tensors import with_tensors
from pytest_trainsafe.core.tensor_id import TensorId
from pytest_trainsafe.trace.reader import RankTrace, Trace

_FLOWS = frozenset({"activation", "activation_grad", "decision"})

#: Identifies a module's calls in one micro-batch: step, micro-batch, module.
_Calls = tuple[int, int | None, str]

#: (stage, the stage's own call number) -> call number in the whole model.
_Numbers = dict[tuple[int, int], int]


def renumbered(candidate: Trace, reference: Trace) -> Trace:
    """Returns a copy of the candidate whose calls have the numbers of the reference's calls.

    Returns the candidate itself if no number changes.  If several stages call a module in a
    micro-batch, the calls of all these stages are sorted and numbered from 0.  The sort key of a
    call is the position, in the reference, of the output that follows the call: the next output
    that the same stage records from a module that no other stage calls.
    """
    if candidate.sizes["pp"] == 1 or reference.sizes["pp"] > 1:
        return candidate
    found = dict(_sequences(candidate, reference))
    if not found:
        return candidate

    def number(rank: RankTrace, id: TensorId) -> TensorId:
        numbers = found.get(_calls(id)) if id.kind in _FLOWS else None
        call = numbers.get((rank.coordinates["pp"], id.call)) if numbers else None
        return id if call is None else msgspec.structs.replace(id, call=call)

    changed = with_tensors(
        candidate,
        lambda rank: {
            (new := number(rank, id)): msgspec.structs.replace(event, id=new)
            for id, event in rank.tensors.items()
        },
    )
    changed.renumbered = frozenset(module for _, _, module in found)
    return changed


def _sequences(candidate: Trace, reference: Trace) -> Iterator[tuple[_Calls, _Numbers]]:
    """Yields each module whose calls in a micro-batch form one sequence over several stages.

    The module is given as (step, micro-batch, module), together with the new call numbers.  Modules
    whose call numbers do not change are left out.
    """
    made: defaultdict[_Calls, defaultdict[int, set[int]]] = defaultdict(lambda: defaultdict(set))
    for id in candidate.ids():
        if id.kind == "activation":
            for rank, _ in candidate.holders(id):
                made[_calls(id)][rank.coordinates["pp"]].add(id.call)
    expected: defaultdict[_Calls, set[int]] = defaultdict(set)
    order: dict[TensorId, int] = {}
    for place, id in enumerate(reference.ids()):
        if id.kind == "activation":
            expected[_calls(id)].add(id.call)
            order[id] = place
    shared = {
        calls: stages
        for calls, stages in made.items()
        if len(stages) > 1
        and len(expected[calls]) == sum(map(len, stages.values())) > max(map(len, stages.values()))
    }
    followed = _followed_by(candidate, order, {c for c, stages in made.items() if len(stages) > 1})
    for calls, stages in shared.items():
        placed = sorted(
            (followed.get((stage, calls, call), math.inf), stage, call)
            for stage, each in stages.items()
            for call in each
        )
        numbers = {(stage, call): n for n, (_, stage, call) in enumerate(placed)}
        if any(call != number for (_, call), number in numbers.items()):
            yield calls, numbers


def _followed_by(
    candidate: Trace, order: Mapping[TensorId, int], on_several: Collection[_Calls]
) -> dict[tuple[int, _Calls, int], int]:
    """Maps each call to the position, in the reference, of the output that follows the call.

    A key is (stage, (step, micro-batch, module), the stage's call number).  The output that follows
    a call is the next one that the same stage records from a module that no other stage calls.  A
    call that no such output follows has no entry.  `order` maps each output to its position in the
    reference.  `on_several` has (step, micro-batch, module) for each module that several stages
    call.
    """
    followed: dict[tuple[int, _Calls, int], int] = {}
    seen: set[tuple[int, int, int | None]] = set()
    for rank in candidate.ranks:
        stage, following = rank.coordinates["pp"], dict[tuple[int, int | None], int]()
        flows = [id for id in rank.tensors if id.kind == "activation"]
        fresh = {(id.step, id.microbatch) for id in flows} - {
            (step, microbatch) for other, step, microbatch in seen if other == stage
        }
        seen |= {(stage, *when) for when in fresh}
        for id in reversed(flows):
            calls, when = _calls(id), (id.step, id.microbatch)
            if when not in fresh:
                continue
            if calls not in on_several:
                if id in order:
                    following[when] = order[id]
            elif when in following:
                followed.setdefault((stage, calls, id.call), following[when])
    return followed


def _calls(id: TensorId) -> _Calls:
    return id.step, id.microbatch, id.module
