"""Finds micro-batches that the dp ranks skipped or computed twice, or that the reference lacks.

A micro-batch is compared with the reference's micro-batch of the same number.  So every number must
be computed by one dp coordinate, or by all if they share each batch.  Called by the judge and
`guards/leading.py`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from pytest_trainsafe.core.finding import Finding
from pytest_trainsafe.core.layout import axes_of
from pytest_trainsafe.core.mesh import elsewhere
from pytest_trainsafe.core.tensor_id import INITIAL, TensorId
from pytest_trainsafe.judges.compare.rung import RungTraces
from pytest_trainsafe.trace.reader import RankTrace, Trace

#: The largest number of micro-batches that a message lists.
_MAX_LISTED = 8

#: The relative error of a factor that is the ratio of two numbers of micro-batches.
_CLOSE = 0.01

#: The micro-batches of a step, each with the dp coordinates that computed it.
_Owners = dict[int, set[int]]


def misnumbered(candidate: Trace, reference: Trace, dtype: str) -> Finding | None:
    """A finding on the first step in which a micro-batch is missing or a number is used twice.

    A number is used twice if several dp ranks compute a micro-batch of this number from different
    data; it is allowed that they compute it from the same data.  None if there is no such step, at
    dp=1, or if dp ranks hold shards or partial sums of the same micro-batch.
    """
    if candidate.sizes["dp"] == 1 or shares_batches(candidate):
        return None
    found, due = _owners(candidate), _owners(reference)
    for step in sorted(found.keys() & due.keys()):
        missing = sorted(due[step].keys() - found[step].keys())
        twice = sorted(
            number
            for number, owners in found[step].items()
            if len(owners) > 1 and _different_data(candidate, step, number)
        )
        if missing or twice:
            return Finding(
                verdict="fail",
                judge="compare",
                check="microbatches",
                dtype=dtype,
                order=-1,
                message=_message(step, missing, twice, found[step]),
            )
    return None


def overnumbered(rung: RungTraces, lead: Finding, where: TensorId) -> Finding | None:
    """A finding on micro-batches of a step that the reference lacks, if they explain the failure.

    `lead` is the finding on the first wrong tensor, `where`: one of the whole step, or a multiple
    by the ratio of the numbers of micro-batches.  A Run may compute a step in more micro-batches
    than its reference: only if the step is wrong, they are the likely cause.
    """
    if where.step <= INITIAL or shares_batches(rung.candidate):
        return None
    ours, due = (_owners(trace).get(where.step, {}) for trace in (rung.candidate, rung.reference))
    more = sorted(ours.keys() - due.keys())
    if not more or not due or due.keys() - ours.keys():
        return None
    if where.microbatch is not None:
        factor = lead.pattern.factor if lead.pattern is not None else 0.0
        ratio = len(due) / len(ours)
        if not any(math.isclose(factor, each, rel_tol=_CLOSE) for each in (ratio, 1 / ratio)):
            return None
    numbers = f"{_numbered(more)} of step {where.step}"
    return Finding(
        verdict="fail",
        judge="compare",
        check="microbatches",
        dtype=rung.dtype,
        order=-1,
        message=(
            f"the ranks computed {numbers}, which the reference does not compute: it has "
            f"{len(due)} in a step, and they have {len(ours)}. Every Point must compute the same "
            "micro-batches: give ctx.microbatches(total) a total that does not depend on dp, and "
            "divide it among the ranks"
        ),
    )


def _owners(trace: Trace) -> dict[int, _Owners]:
    steps: dict[int, _Owners] = {}
    for rank in trace.ranks:
        for step, number in _entered(rank):
            owners = steps.setdefault(step, {}).setdefault(number, set())
            owners.add(rank.coordinates["dp"])
    return steps


def _entered(rank: RankTrace) -> Iterable[tuple[int, int]]:
    """The (step, number) of each micro-batch of which a rank recorded an input or a tensor."""
    if rank.note("level"):
        return set()  # with level="step" the numbers count calls
    given = {(event.step, event.microbatch) for event in rank.inputs}
    return given | {(id.step, id.microbatch) for id in rank.tensors if id.microbatch is not None}


def shares_batches(trace: Trace) -> bool:
    """Whether dp ranks hold shards or partial sums of the same micro-batch."""
    return any(
        id.microbatch is not None
        and id.kind != "loss"
        and "dp" in map(trace.sizes.mesh.role, axes_of(placement))
        for rank in trace.ranks
        for id, event in rank.tensors.items()
        for placement in event.layout
    )


def _different_data(trace: Trace, step: int, number: int) -> bool:
    """Whether dp ranks that computed the same micro-batch received different data for it."""
    given: dict[tuple[tuple[str, int], ...], set[tuple[str, ...]]] = {}
    for rank in trace.ranks:
        place = elsewhere(rank.coordinates, ("dp",))
        hashes = tuple(
            digest
            for event in rank.inputs
            if (event.step, event.microbatch) == (step, number)
            for digest in event.hashes
        )
        if hashes:
            given.setdefault(place, set()).add(hashes)
    return any(len(each) > 1 for each in given.values())


def _message(step: int, missing: list[int], twice: list[int], owners: _Owners) -> str:
    parts = []
    if twice:
        ranks = " and ".join(map(str, sorted(owners[twice[0]])))
        parts.append(
            f"ranks {ranks} of dp computed {_numbered(twice)} of step {step} from different data"
        )
    if missing:
        of = "" if twice else f" of step {step}"
        parts.append(f"no rank computed {_numbered(missing)}{of}, which the reference has")
    advice = (
        "Number micro-batches over all dp ranks, as ctx.microbatches(total) does; its argument "
        "`order` determines which rank computes which micro-batch"
    )
    if len(twice) == len(owners):
        advice += (
            "; with order='split' each rank computes a slice of every micro-batch. If the "
            "micro-batches have no counterpart in the reference, compare whole steps: "
            "ctx.watch(..., level='step')"
        )
    return f"{', and '.join(parts)}. {advice}"


def _numbered(numbers: list[int]) -> str:
    shown = ", ".join(map(str, numbers[:_MAX_LISTED]))
    more = f" and {len(numbers) - _MAX_LISTED} more" if len(numbers) > _MAX_LISTED else ""
    return f"micro-batch{'es' if len(numbers) > 1 else ''} {shown}{more}"
