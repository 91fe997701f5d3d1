"""Says which parameters a program itself would start apart, where `ctx.initialize` hides it.

`ctx.initialize` gives every copy of a parameter the same values, so no comparison shows that the
program seeds its ranks differently. Called by the replay judge, and by `--trainsafe-init`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from pytest_trainsafe.align.copies import copies, neighbours
from pytest_trainsafe.core.code_files import relative
from pytest_trainsafe.core.tensor_id import INITIAL, TensorId
from pytest_trainsafe.core.usage import first_few, name_ranks
from pytest_trainsafe.trace.facts import CollectiveEvent, Overwritten, Site
from pytest_trainsafe.trace.reader import RankTrace, Trace
from pytest_trainsafe.trace.rng.ledger import first_apart, initial_draws, sources
from pytest_trainsafe.trace.schema import TensorEvent


def overwritten(candidate: Trace, reference: Trace) -> list[str]:
    """A note for each axis whose ranks the program itself would start with different copies.

    Memory that nothing has written yet does not count, and neither do copies that the program
    makes equal after `ctx.initialize`, by a broadcast or by a wrapper.
    """
    found: dict[str, str] = {}
    for axis, left, right in neighbours(candidate):
        if axis in found or (candidate.sizes.mesh.role(axis) == "dp" and _wrapped(left)):
            continue
        differing = _differing(left, right)
        names = [
            id.path
            for id in copies(candidate, reference, axis, left, right)
            if id.path in differing and not _broadcast(id, left)
        ]
        if names:
            found[axis] = _note(axis, left, right, names)
    return list(found.values())


def _note(axis: str, left: RankTrace, right: RankTrace, names: list[str]) -> str:
    ranks = name_ranks([left.rank, right.rank])
    apart = first_apart(left, right)
    because = ""
    if apart is not None:
        from_one, from_other = sources(*apart)
        because = (
            f": at {relative(apart[0].line)}, rank {left.rank} draws from {from_one}, and rank "
            f"{right.rank} from {from_other}"
        )
    return (
        f"ctx.initialize hides that the program itself starts {ranks} of {axis} with different "
        f"copies of {first_few(names)}{because}. Without ctx.initialize, seed the ranks of {axis} "
        "alike for the parameters they share, or broadcast these from one rank"
    )


def _differing(left: RankTrace, right: RankTrace) -> set[str]:
    """The parameters to which the program gave different values on two ranks.

    A parameter that no operation has written in place holds what another tensor held, or memory
    that nothing has written yet.  It counts only if the ranks drew numbers of its shape from
    different streams.
    """
    draws = zip(initial_draws(left), initial_draws(right), strict=False)
    shapes = {one.shape for one, other in draws if one.before != other.before}
    drawn = {id.path for id, event in _initial(left) if event.shape in shapes}
    here, there = (_own_values(rank) for rank in (left, right))
    return {
        name
        for name, (hash, written) in here.items()
        if name in there and hash != there[name][0] and (name in drawn or written)
    }


def _own_values(rank: RankTrace) -> dict[str, tuple[str, bool]]:
    """By parameter, the hash of the program's own values, and whether any were written in place."""
    return {
        name: (hash, name not in event.unwritten)
        for event in rank.events_of(Overwritten)
        for name, hash in event.hashes.items()
    }


def _initial(rank: RankTrace) -> Iterator[tuple[TensorId, TensorEvent]]:
    """The parameters before the first step."""
    return (
        (id, event)
        for id, event in rank.tensors.items()
        if (id.step, id.kind) == (INITIAL, "param")
    )


def _broadcast(id: TensorId, rank: RankTrace) -> bool:
    """Whether the program broadcasts tensors as large as a parameter before its first step."""
    size = math.prod(rank.tensors[id].shape)
    calls = (c for c in rank.events_of(CollectiveEvent) if c.op == "broadcast" and c.step is None)
    return any(call.shape is None or math.prod(call.shape) >= size for call in calls)


def _wrapped(rank: RankTrace) -> bool:
    """Whether a wrapper of torch, such as DistributedDataParallel, reduces gradients."""
    return any(site.what == "wrapper" for site in rank.events_of(Site))
