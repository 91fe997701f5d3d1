"""Builds logical tensors, those that a single device would hold, from a Trace.

Called by the judges; combines the trace reader and merge.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import msgspec
import torch

from pytest_trainsafe.align.merge import Merged, Part, accumulator, merge
from pytest_trainsafe.core.layout import Flat, Layout, Owned, Sizes, Slices
from pytest_trainsafe.core.tensor_id import TensorId
from pytest_trainsafe.core.usage import shown
from pytest_trainsafe.errors import ArgumentError, ArgumentTypeError
from pytest_trainsafe.trace.reader import Trace


def parts_of(trace: Trace, id: TensorId) -> list[Part]:
    """The parts of `id` that the ranks recorded with their values, in rank order.

    Parts with the same hash have the same bits and are loaded once.
    """
    parts = []
    order = _order(trace, id)
    loaded: dict[tuple[str, str, tuple[int, ...]], torch.Tensor] = {}
    for rank, event in trace.holders(id):
        bits = event.hash, event.dtype, event.shape
        tensor = loaded.get(bits)
        if tensor is None:
            tensor = trace.load(rank.rank, event)
            tensor = loaded[bits] = tensor.permute(order) if order else tensor
        parts.append(Part(rank.rank, rank.coordinates, tensor, event.layout, event.layout_source))
    return parts


def logical_tensor(trace: Trace, id: TensorId, shape: Sequence[int] | None = None) -> Merged:
    """Merges the parts of tensor `id` that the ranks recorded into the logical tensor.

    The logical tensor is the one that a single device would hold; see `Merged`.  `shape` is the
    shape of this tensor in the reference, if known.  `free_axes` says on which ranks a tensor is
    expected: one of one micro-batch, for example, on the dp coordinate that computed it.
    Raises ArgumentError for a tensor that no rank recorded with its values.
    """
    given: tuple[object, object] = trace, id  # from tests, which need not be type-checked
    if not isinstance(given[0], Trace):
        raise ArgumentTypeError(
            f"logical_tensor takes a Trace, such as candidate_trace.at('float32'), not "
            f"{shown(given[0])}"
        )
    if not isinstance(given[1], TensorId):
        raise ArgumentTypeError(
            f"logical_tensor takes a TensorId, such as one of trace.ids(), not {shown(given[1])}"
        )
    if not trace.holders(id):
        raise ArgumentError(f"no rank of the trace {trace.path} recorded {id}; see trace.ids()")
    parts = parts_of(trace, id)
    if trace.manifest.world_size == 1 and not parts[0].layout:
        only = parts[0].tensor
        if shape is None or tuple(shape) == only.shape:  # as most references, which fit by nature
            return Merged(only.to(accumulator(only.dtype, summed=False)), parts=parts)
    return merge(
        parts,
        trace.sizes,
        shape=shape,
        free_axes=free_axes(id),
        where=id,
        numbers=trace.numbers,
    )


def whole_hash(trace: Trace, id: TensorId) -> tuple[str, str, tuple[int, ...]] | None:
    """The hash, dtype and shape of a tensor, if every rank holds all of it with the same bits.

    Otherwise None.  If two traces give the same result, their logical tensors are equal and need
    not be loaded.
    """
    holders = trace.holders(id)
    if not holders or _order(trace, id):
        return None
    first = holders[0][1]
    bits = first.hash, first.dtype, first.shape
    for _, event in holders:
        if (event.hash, event.dtype, event.shape) != bits or _shared_out(event.layout, trace.sizes):
            return None
    stages = {tuple(rank.coordinates[axis] for axis in free_axes(id)) for rank, _ in holders}
    free = trace.sizes.mesh.expand(free_axes(id))
    bound = prod(size for axis, size in trace.sizes.items() if axis not in free)
    return bits if len(holders) == len(stages) * bound else None


def _shared_out(layout: Layout, sizes: Sizes) -> bool:
    """Whether ranks hold parts of a tensor, or terms of a sum; axes of size 1 do not count."""
    return any(isinstance(p, Slices | Flat | Owned) or sizes.get(p.axis, 2) > 1 for p in layout)


def _order(trace: Trace, id: TensorId) -> tuple[int, ...]:
    """The permutation that restores the dimensions of a tensor, if one was inferred; else ()."""
    flows = trace.permuted and id.kind in ("activation", "activation_grad")
    return trace.permuted.get((id.module, id.name), ()) if flows else ()


def free_axes(id: TensorId) -> tuple[str, ...]:
    """The axes along which not every rank needs to hold the tensor `id`.

    They are pp, and also dp for a tensor of one micro-batch.  For an optimizer state they are pp,
    dp and cp: one rank may update a parameter and send it to the others, which then need no state.
    If they neither have a state nor get the parameter, its update is wrong on them.
    """
    if id.kind == "optimizer_state":
        return ("pp", "dp", "cp")
    return ("pp", "dp") if id.microbatch is not None else ("pp",)


def is_cut_over_stages(trace: Trace, id: TensorId) -> bool:
    """Whether each pipeline stage has an output of its own under the name of `id`.

    A container of layers (the decoder, the model itself) may be split over several stages.  Its
    output on a stage is what the stage passes on, not the output of the whole container.
    """
    if trace.sizes["pp"] == 1 or id.kind not in ("activation", "activation_grad"):
        return False
    output = msgspec.structs.replace(id, kind="activation")
    holders = trace.holders(output) or trace.holders(id)
    inside = f"{id.module}." if id.module else ""
    contents: dict[int, set[str]] = {}
    for rank, _ in holders:
        held = {name for name in rank.modules if name.startswith(inside)}
        contents.setdefault(rank.coordinates["pp"], set()).update(held)
    return any(held != other for held in contents.values() for other in contents.values())
