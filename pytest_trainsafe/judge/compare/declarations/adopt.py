"""A trace as it would be if some layouts had been declared.

Called where the compare judge proposes declarations.  Whether a proposal is right is seen by
judging the whole candidate with it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from pytest_trainsafe.align.with_tensors import Tensors, with_tensors
from pytest_trainsafe.core.layout import Layout, Partial, Scaled
from pytest_trainsafe.core.tensor_id import TensorId
from pytest_trainsafe.judge.compare.declarations.suggest import MissingLayout, place_of
from pytest_trainsafe.trace.reader import RankTrace, Trace
from pytest_trainsafe.trace.schema import TensorEvent

#: What says where a layout comes from that nobody declared.
PROPOSED = "a proposal"


def adopt(trace: Trace, needs: Iterable[MissingLayout]) -> Trace:
    """The same trace, its files shared, with the layouts of `needs` in its events."""
    by_key = {(need.section, need.name, need.place): need for need in needs}
    adopted = with_tensors(trace, lambda rank: _needed(rank, by_key))
    orders = {(need.name, need.place): need.order for need in by_key.values() if need.order}
    adopted.permuted = {**trace.permuted, **orders}
    return adopted


def adopt_means(trace: Trace, gradients: Sequence[str], loss: Sequence[str]) -> Trace:
    """The same trace, if gradients before the reduction, and losses, are means over these axes."""
    return with_tensors(
        trace,
        lambda rank: {id: _mean(id, e, gradients, loss) for id, e in rank.tensors.items()},
    )


def drop_means(trace: Trace) -> Trace:
    """The same trace, if no gradient were declared a mean."""

    def dropped(event: TensorEvent) -> TensorEvent:
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
    """The layout that the needs give a tensor, None where they leave it as it is."""
    if id.kind == "loss":
        need = needs.get(("loss", "", ""))
        return need.layout if need else None
    if id.kind in ("activation", "activation_grad"):
        if id.kind == "activation_grad":
            own = needs.get(("modules", id.module, place_of(id)))
            if own is not None:
                return own.layout
        need = needs.get(("modules", id.module, id.name))
        if need is None or id.kind == "activation":
            return need.layout if need else None
        return tuple(p for p in need.layout if not isinstance(p, Partial))
    name = next((n for n in _names(id) if n in shapes), "")
    need = needs.get(("parameters", name, ""))
    if need is None or id.kind == "grad_norm":
        return None
    if need.sums:
        return (*event.layout, *need.added) if id.kind == "param_grad" else None
    if event.shape != shapes[name]:
        return None
    return (*need.added, *(p for p in event.layout if isinstance(p, Partial | Scaled)))


def _names(id: TensorId) -> Iterable[str]:
    """The names that a parameter of this tensor may have: `weight.exp_avg` is of `weight`."""
    path = id.path
    while path:
        yield path
        path = path.rpartition(".")[0]


def replace_means(trace: Trace, gradients: Sequence[str], loss: Sequence[str]) -> Trace:
    """The same trace, with means over these axes in place of those that are declared."""

    def bare(id: TensorId, event: TensorEvent) -> TensorEvent:
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
