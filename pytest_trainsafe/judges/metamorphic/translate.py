"""Translates tensors of one Run of a metamorphic relation, to compare them with the other Run."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

import torch
import xxhash
from msgspec import structs

from pytest_trainsafe.align.logical import logical_tensor
from pytest_trainsafe.core.layout import REPLICATED, axes_of
from pytest_trainsafe.core.tensor_id import TensorId
from pytest_trainsafe.core.usage import shown
from pytest_trainsafe.errors import ArgumentError, RelationError
from pytest_trainsafe.judges.metamorphic.relations.relation import KEEP, Combine, Relation, View
from pytest_trainsafe.trace.reader import RankTrace, Trace
from pytest_trainsafe.trace.schema import TensorEvent

#: Maps tensors to their logical shapes.
Shapes = Mapping[TensorId, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class _Made:
    """How a translated tensor is made: `combine` is called with the tensors of `parts`.

    If `logical` is true, it is called with the logical tensors, which are assembled from all ranks.
    Otherwise it is called with the tensors of the same rank.
    """

    parts: tuple[TensorEvent, ...]
    combine: Combine
    logical: bool


@dataclass(slots=True)
class TranslatedTrace(Trace):
    """A trace whose tensors are translated into those of another Run, each when it is loaded.

    `source` is the trace as recorded.  `left_out` has the tensors that have no counterpart in the
    other Run, or that the relation ignores.
    """

    source: Trace | None = None
    made: dict[tuple[int, TensorId], _Made] = field(default_factory=dict)
    left_out: frozenset[TensorId] = frozenset()

    def load(self, rank: int, event: TensorEvent) -> torch.Tensor:
        """The translated tensor of a rank's event.  Raises TraceError if a part is unreadable."""
        assert self.source is not None
        made = self.made.get((rank, event.id))
        if made is None:
            return self.source.load(rank, event)
        if made.logical:
            whole = [logical_tensor(self.source, part.id).whole for part in made.parts]
            parts = [tensor for tensor in whole if tensor is not None]
            if len(parts) != len(whole):
                parts = [self.source.load(rank, part) for part in made.parts]
        else:
            parts = [self.source.load(rank, part) for part in made.parts]
        return made.combine([_wide(part) for part in parts])

    def with_ranks(self, ranks: list[RankTrace]) -> Trace:
        """This trace with the ranks `ranks`, which have other events, in place of its own."""
        return TranslatedTrace(
            self.path,
            self.manifest,
            ranks,
            source=self.source,
            made=self.made,
            left_out=self.left_out,
        )


def translated(trace: Trace, view: View | None, like: Shapes, relation: Relation) -> Trace:
    """The trace with its tensors translated by `view`, without those that the relation ignores.

    `like` has the shapes of the other Run's tensors.  Raises RelationError if the micro-batches
    that make up one micro-batch of the other Run are on different dp ranks.
    """
    if view is None and not relation.ignore:
        return trace
    made: dict[tuple[int, TensorId], _Made] = {}
    left_out: set[TensorId] = set()
    ranks = []
    for rank in trace.ranks:
        adopted = copy.copy(rank)
        adopted.tensors = {}
        for id, parts in _groups(rank, view, left_out).items():
            if any(
                fnmatchcase(name, each) for each in relation.ignore for name in (id.module, id.path)
            ):
                left_out.add(id)
                continue
            event = _event(trace, rank, id, parts, view, like, made)
            if event is None:
                left_out.add(id)
            else:
                adopted.tensors[id] = event
        if view is not None:
            # Hashes of the model's inputs, micro-batch by micro-batch, have no counterparts.
            adopted.inputs = []
        ranks.append(adopted)
    if view is not None:
        _require_together(ranks, relation)
    result = TranslatedTrace(
        trace.path,
        trace.manifest,
        ranks,
        trace.problems,
        source=trace,
        made=made,
        left_out=frozenset(left_out),
    )
    result.permuted, result.renumbered = trace.permuted, trace.renumbered
    return result


def shapes_of(trace: Trace) -> dict[TensorId, tuple[int, ...]]:
    """The logical shape of every tensor of a trace."""
    found = {}
    for id in trace.ids():
        events = [event for _, event in trace.holders(id)]
        if any(_is_cut(trace, event) for event in events):
            merged = logical_tensor(trace, id).whole
            found[id] = events[0].shape if merged is None else tuple(merged.shape)
        else:
            found[id] = events[0].shape
    return found


def _groups(
    rank: RankTrace, view: View | None, left_out: set[TensorId]
) -> dict[TensorId, list[TensorEvent]]:
    """Maps each tensor of the other Run to the recorded tensors of a rank that are parts of it.

    Tensors that the view leaves out are added to `left_out`.
    """
    groups: dict[TensorId, list[TensorEvent]] = {}
    for id, event in rank.tensors.items():
        place = id if view is None else view.place(id)
        if place is None:
            left_out.add(id)
        else:
            groups.setdefault(place, []).append(event)
    return {
        place: sorted(parts, key=lambda part: part.id.microbatch or 0)
        for place, parts in groups.items()
    }


def _event(
    trace: Trace,
    rank: RankTrace,
    id: TensorId,
    parts: Sequence[TensorEvent],
    view: View | None,
    like: Shapes,
    made: dict[tuple[int, TensorId], _Made],
) -> TensorEvent | None:
    """The event of one translated tensor; None if it has no counterpart in the other Run.

    An entry that says how its values are computed is added to `made`, unless a single part is kept
    as it is.
    """
    if view is None:
        return parts[0]
    cut = any(_is_cut(trace, part) for part in parts)
    known = like.get(id)
    seen = parts
    if cut:
        whole = shapes_of_parts(trace, parts)
        seen = [structs.replace(p, shape=s) for p, s in zip(parts, whole, strict=True)]
    combine = view.combine(id, seen, known)
    if combine is None:
        return None
    if isinstance(combine, str):
        if combine != KEEP or len(parts) != 1:
            raise ArgumentError(
                f"{type(view).__name__}.combine returned {shown(combine)} for {id}, which has "
                f"{len(parts)} parts; it must return a function of the parts, None, or KEEP "
                "for a single part"
            )
        return structs.replace(parts[0], id=id)
    made[rank.rank, id] = _Made(tuple(parts), combine, cut)
    return structs.replace(
        parts[0],
        id=id,
        shape=known if known is not None else parts[0].shape,
        hash=_digest(view, id, trace if cut else None, parts),
        layout=REPLICATED if cut else parts[0].layout,
        logical=(),
        master_copy=False,
    )


def shapes_of_parts(trace: Trace, parts: Sequence[TensorEvent]) -> list[tuple[int, ...]]:
    """The logical shapes of tensors, each given by the event of one rank in `parts`.

    If the ranks' parts do not fit together, the shape is that of the rank's part.
    """
    merged = [logical_tensor(trace, part.id).whole for part in parts]
    return [
        part.shape if tensor is None else tuple(tensor.shape)
        for part, tensor in zip(parts, merged, strict=True)
    ]


def _digest(view: View, id: TensorId, trace: Trace | None, parts: Sequence[TensorEvent]) -> str:
    """The hash of a translated tensor, computed from the hashes of its parts without their values.

    Tensors made in the same way from equal parts have equal hashes.  The hash never equals that of
    a recorded tensor, so such a pair is compared by values.  The hash of a logical tensor (`trace`
    is given) covers the parts of all ranks, and is equal on all ranks.
    """
    hashes = (
        [part.hash for part in parts]
        if trace is None
        else [event.hash for part in parts for _, event in trace.holders(part.id)]
    )
    return xxhash.xxh3_128_hexdigest("\n".join((repr(view), id.kind, *hashes)).encode())


def _is_cut(trace: Trace, event: TensorEvent) -> bool:
    """Whether the tensor of an event is only a shard or a partial sum of the logical tensor."""
    sizes = trace.sizes
    return any(sizes[axis] > 1 for placement in event.layout for axis in axes_of(placement))


def _wide(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor in float64 or complex128, so that sums hardly round; integers are unchanged."""
    if tensor.is_complex():
        return tensor.to(torch.complex128)
    return tensor.to(torch.float64) if tensor.is_floating_point() else tensor


def _require_together(ranks: Sequence[RankTrace], relation: Relation) -> None:
    """Raises RelationError if the parts of one translated micro-batch are on several dp ranks."""
    owners: dict[int, int] = {}
    for rank in ranks:
        at = rank.coordinates["dp"]
        for id in rank.tensors:
            if id.kind != "param_grad" or id.microbatch is None:
                continue
            if owners.setdefault(id.microbatch, at) != at:
                raise RelationError(
                    f"the relation {shown(relation.name)} does not apply: it compares micro-batch "
                    f"{id.microbatch} of one Run with several micro-batches of a second Run; these "
                    "must be on one dp rank, but are on dp ranks "
                    f"{owners[id.microbatch]} and {at}; let ctx.microbatches give each dp rank a "
                    "contiguous block of micro-batches, which is the default"
                )
