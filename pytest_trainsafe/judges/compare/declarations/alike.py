"""Finds missing layouts by shapes, where the values cannot confirm them.

A parameter that a rank fills as if its shard were the whole holds other values.  An output after
the first fault of a program is wrong; its layout is that of the same output in another layer, whose
values confirm it.  Called by `propose`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

import torch

from pytest_trainsafe.align.logical import parts_of
from pytest_trainsafe.core.indices import local_shape
from pytest_trainsafe.core.layout import Layout, Shard, axes_of
from pytest_trainsafe.core.tensor_id import INITIAL, TensorId
from pytest_trainsafe.judges.compare.comparison import Comparison
from pytest_trainsafe.judges.compare.declarations.infer import AXES
from pytest_trainsafe.judges.compare.declarations.suggest import MissingLayout, place_of
from pytest_trainsafe.judges.compare.explain.numbering import shares_batches
from pytest_trainsafe.judges.compare.rung import RungTraces
from pytest_trainsafe.trace.reader import Trace


def is_open(candidate: Trace, id: TensorId) -> bool:
    """Whether an annotation could add a mesh axis to the layout of the tensor `id`."""
    holders = candidate.holders(id)
    if not holders:
        return False
    event = holders[0][1]
    if id.kind == "param_grad":
        if candidate.sizes["tp"] == 1:
            return False
    elif event.layout_source in ("dtensor", "attribute"):
        return False
    kinds = ("activation", "activation_grad", "loss", "param", "param_grad")
    if id.kind not in kinds or (id.kind == "param" and id.step != INITIAL):
        return False
    role = candidate.sizes.mesh.role
    said = {role(axis) for placement in event.layout for axis in axes_of(placement)}
    return any(candidate.sizes[axis] > 1 and axis not in said for axis in axes_for(candidate, id))


def axes_for(candidate: Trace, id: TensorId) -> tuple[str, ...]:
    """The mesh axes that a layout may name, among them dp if dp ranks share micro-batches."""
    split = id.kind in ("activation", "activation_grad") and shares_batches(candidate)
    return ("dp", *AXES) if split else AXES


def like_others(
    rung: RungTraces, targets: Iterable[TensorId], needs: Iterable[MissingLayout]
) -> Iterator[MissingLayout]:
    """The missing layouts of outputs that are cut like the same output of another layer.

    `targets` are failing tensors without a layout, and `needs` the layouts that values confirm.
    """
    known: dict[tuple[str, str, int], set[Layout]] = {}
    for need in needs:
        if need.section == "modules" and not (need.sums or need.order):
            key = _numbered(need.name), need.place, need.ndim
            known.setdefault(key, set()).add(need.layout)
    for id in targets:
        if id.kind != "activation":
            continue
        event = rung.candidate.holders(id)[0][1]
        ndim = len(event.shape)
        layouts = known.get((_numbered(id.module), place_of(id), ndim), set())
        if event.layout or len(layouts) != 1:
            continue
        (layout,) = layouts
        if _fits(rung, id, layout):
            source = event.layout_source
            yield MissingLayout("modules", id.module, place_of(id), (), layout, source, ndim)


def _numbered(name: str) -> str:
    """The name of a module for all layers: `blocks.#.fc` for `blocks.7.fc`."""
    return re.sub(r"(?<![^.])[0-9]+(?![^.])", "#", name)


def _fits(rung: RungTraces, id: TensorId, layout: Layout) -> bool:
    """Whether the shapes of a tensor's parts are those of a layout, and not those of the whole."""
    whole, sizes = rung.reference.holders(id)[0][1].shape, rung.candidate.sizes
    held = [(rank.coordinates, tuple(event.shape)) for rank, event in rung.candidate.holders(id)]
    fits = all(local_shape(layout, at, sizes, whole) == shape for at, shape in held)
    return fits and any(shape != tuple(whole) for _, shape in held)


def shaped_as_whole(rung: RungTraces, comparison: Comparison) -> list[MissingLayout]:
    """The missing layouts of parameters whose shards the ranks initialised as if they were whole.

    They are found by the parameters' shapes alone.
    """
    found: list[MissingLayout] = []
    for finding in comparison.findings:
        id = finding.where
        if finding.verdict != "fail" or id is None or id.kind != "param" or id.step != INITIAL:
            continue
        if any(need.name == id.path for need in found) or not _filled_as_whole(rung, id):
            continue
        cut = cut_by_shape(rung, id)
        if cut:
            event = rung.candidate.holders(id)[0][1]
            source, ndim = event.layout_source, len(event.shape)
            found.append(MissingLayout("parameters", id.path, "", event.layout, cut, source, ndim))
    return found


def _filled_as_whole(rung: RungTraces, id: TensorId) -> bool:
    """Whether the ranks filled their shards of a parameter as if each were the whole.

    The values then depend on the shape: shards of one shape are equal.  Of shards that differ in
    shape, the shapes alone show that they are shards (`cut_by_shape`).
    """
    if not rung.candidate.holders(id) or not is_open(rung.candidate, id):
        return False
    first, *others = (part.tensor for part in parts_of(rung.candidate, id))
    alike = [other for other in others if other.shape == first.shape]
    return all(torch.equal(other, first) for other in alike)


def cut_by_shape(rung: RungTraces, id: TensorId) -> Layout | None:
    """The layout over tp that follows from the shapes of a parameter and of its reference.

    Empty if the shapes are equal, and None if no layout fits.  Shards may be unequal, as
    `torch.chunk` cuts them.
    """
    there, held = rung.reference.holders(id), rung.candidate.holders(id)
    if not there:
        return None
    whole, sizes = there[0][1].shape, rung.candidate.sizes
    parts = [(rank.coordinates, event.shape) for rank, event in held]
    if any(len(shape) != len(whole) for _, shape in parts):
        return None
    cut = {dim for _, shape in parts for dim, part in enumerate(shape) if part != whole[dim]}
    if not cut:
        return ()
    layout: Layout = (Shard(min(cut), "tp"),)
    fits = all(local_shape(layout, at, sizes, whole) == tuple(shape) for at, shape in parts)
    return layout if fits else None
