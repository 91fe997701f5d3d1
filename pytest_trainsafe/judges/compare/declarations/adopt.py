"""Copies a trace with other layouts, as if these had been declared.

Called where the compare judge proposes annotations: it verifies a proposal by judging the whole
candidate with the proposed layouts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from pytest_trainsafe.align.with_tensors import Tensors, with_tensors
from pytest_trainsafe.core.layout import Layout, Partial, Scaled
from pytest_trainsafe.core.tensor_id import TensorId
from pytest_trainsafe.judges.compare.declarations.suggest import MissingLayout, place_of
from pytest_trainsafe.judges.compare.unmatched import PROPOSED
from pytest_trainsafe.trace.reader import RankTrace, Trace
from pytest_trainsafe.trace.schema import TensorEvent


def adopt(trace: Trace, needs: Iterable[MissingLayout]) -> Trace:
    """A copy of the trace with the layouts proposed in `needs`; it shares the trace's files."""
    by_key = {(need.section, need.name, need.place): need for need in needs}
    adopted = with_tensors(trace, lambda rank: _needed(rank, by_key))
    orders = {(need.name, need.place): need.order for need in by_key.values() if need.order}
    adopted.permuted = {**trace.permuted, **orders}
    return adopted


def adopt_means(trace: Trace, gradients: Sequence[str], loss: Sequence[str]) -> Trace:
    """A copy of the trace that declares gradients and losses to be means over ranks.

    Gradients before the reduction are means over the axes `gradients`, losses over the axes `loss`.
    """
    return with_tensors(
        trace,
        lambda rank: {id: _mean(id, e, gradients, loss) for id, e in rank.tensors.items()},
    )


def drop_means(trace: Trace) -> Trace:
    """A copy of the trace in which no gradient is declared a mean over ranks."""

    def dropped(event: TensorEvent) -> TensorEvent:
        """A copy of the event without the averaging that is declared for it."""
        layout = tuple(p for p in event.layout if not isinstance(p, Scaled))
        return msgspec.structs.replace(event, layout=layout)

    return with_tensors(trace, lambda rank: {id: dropped(e) for id, e in rank.tensors.items()})


def _mean(
    id: TensorId, event: TensorEvent, gradients: Sequence[str], loss: Sequence[str]
) -> TensorEvent:
    added: Layout = ()
    if id.kind in ("activation_grad", "param_grad"):
        added = tuple(Scaled(axis) for axis in gradients)
    elif id.kind == "loss":
        added = tuple(Partial(axis, "avg") for axis in loss)
    if not added:
        return event
    return msgspec.structs.replace(event, layout=(*event.layout, *added), layout_source=PROPOSED)


def _needed(rank: RankTrace, needs: dict[tuple[str, str, str], MissingLayout]) -> Tensors:
    whole = {
        id.path: event.shape for id, event in rank.tensors.items() if id.kind in ("param", "update")
    }
    tensors = {}
    for id, event in rank.tensors.items():
        layout = _layout(id, event, needs, whole)
        if layout is not None:
            event = msgspec.structs.replace(event, layout=layout, layout_source=PROPOSED)
        tensors[id] = event
    return tensors


def _layout(
    id: TensorId,
    event: TensorEvent,
    needs: dict[tuple[str, str, str], MissingLayout],
    shapes: dict[str, tuple[int, ...]],
) -> Layout | None:
    """The proposed layout of a tensor; None if `needs` does not change it."""
    if id.kind == "loss":
        need = needs.get(("loss", "", ""))
        return need.layout if need else None
    if id.kind in ("activation", "activation_grad"):
        if id.kind == "activation_grad":
            own = needs.get(("modules", id.module, place_of(id)))
            if own is not None:
                return _averaged_as(event, own.layout)
        need = needs.get(("modules", id.module, id.name))
        if need is None or id.kind == "activation":
            return need.layout if need else None
        return _averaged_as(event, tuple(p for p in need.layout if not isinstance(p, Partial)))
    name = next((n for n in _names(id) if n in shapes), "")
    need = needs.get(("parameters", name, ""))
    if need is None or id.kind == "grad_norm":
        return None
    if need.sums:
        return (*event.layout, *need.added) if id.kind == "param_grad" else None
    if event.shape != shapes[name]:
        return None
    return (*need.added, *(p for p in event.layout if isinstance(p, Partial | Scaled)))


def _averaged_as(event: TensorEvent, layout: Layout) -> Layout:
    """The layout of a gradient with the averages over ranks that are declared for `event`.

    A module's entry says nothing about them: they come from the declaration of the reduction, and
    at another Point they are over other axes.
    """
    split = (p for p in layout if not isinstance(p, Scaled))
    return (*split, *(p for p in event.layout if isinstance(p, Scaled)))


def _names(id: TensorId) -> Iterable[str]:
    """The possible paths of this tensor's parameter: `weight.exp_avg` may belong to `weight`."""
    path = id.path
    while path:
        yield path
        path = path.rpartition(".")[0]


def replace_means(trace: Trace, gradients: Sequence[str], loss: Sequence[str]) -> Trace:
    """A copy of the trace in which other means over ranks are declared than in the trace.

    Gradients before the reduction become means over the axes `gradients`, and losses over the axes
    `loss`.
    """

    def bare(id: TensorId, event: TensorEvent) -> TensorEvent:
        """The event without declared averaging if it is a loss or an unreduced gradient."""
        if id.kind not in ("activation_grad", "param_grad", "loss"):
            return event
        layout = tuple(
            placement
            for placement in event.layout
            if not isinstance(placement, Scaled)
            and not (id.kind == "loss" and isinstance(placement, Partial) and placement.op == "avg")
        )
        return msgspec.structs.replace(event, layout=layout)

    return with_tensors(
        trace,
        lambda rank: {
            id: _mean(id, bare(id, event), gradients, loss) for id, event in rank.tensors.items()
        },
    )
