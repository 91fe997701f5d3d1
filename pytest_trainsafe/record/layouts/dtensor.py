"""Layouts from DTensor placements.

Called by the recorder for DTensor parameters and outputs.  The shape of the local tensor is
recomputed from the placements and checked, so that a placement that a Layout cannot express is an
error here and not a false alarm in a judge.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pytest_trainsafe.compat.tensors import local_part
from pytest_trainsafe.core.indices import Indices, LayoutError, contiguous_ranges, index_arrays
from pytest_trainsafe.core.layout import Layout, Partial, Placement, Shard, Sizes, Slices
from pytest_trainsafe.core.mesh import coordinates_over, mesh_of, sizes_over
from pytest_trainsafe.core.point import MESH_AXES

#: The names that common frameworks give to the dimensions of their meshes.
AXIS_NAMES: dict[str, tuple[str, ...]] = {
    **{axis: (axis,) for axis in MESH_AXES},
    "dp_shard": ("dp",),
    "dp_replicate": ("dp",),
    "fsdp": ("dp",),
    "dp_shard_cp": ("dp", "cp"),
    "dp_cp": ("dp", "cp"),
}


def is_dtensor(tensor: object) -> bool:
    """Whether this is a DTensor; does not import torch.distributed."""
    return type(tensor).__name__ == "DTensor" and hasattr(tensor, "placements")


def dtensor_layout(
    tensor: Any,
    sizes: Sizes | None = None,
    axes: Mapping[str, str | Sequence[str]] | None = None,
) -> Layout:
    """The layout of a DTensor's local tensor.

    With the Point's `sizes`, a mesh dimension is identified by the axes along which its global
    ranks vary.  Otherwise it is identified by its name: `axes` maps names to axes, in addition to
    AXIS_NAMES.  If a mesh dimension that shards the tensor is not exactly one axis (HSDP's two
    parts of dp; dp and cp flattened into one), the layout is a Slices placement, which states the
    offsets and lengths of this rank's part.  Raises LayoutError for an unknown name, and for
    placements that no layout expresses, such as maxima over ranks or NormPartial.
    """
    mesh = tensor.device_mesh
    where = mesh.get_coordinate()
    if where is None:
        raise LayoutError(
            f"{_shown(tensor)} has no part on this rank, because the tensor's mesh does not "
            "contain this rank; use a mesh that contains every rank on which the program has the "
            "tensor"
        )
    dims = _by_rank(mesh, where, sizes) if sizes is not None else _by_name(mesh, axes or {})
    partials: list[Placement] = []
    for number, placement in enumerate(tensor.placements):
        if placement.is_partial() and mesh.size(number) > 1:
            partials += _partial(tensor, placement, dims[number])
    cuts = _cuts(tensor)
    arrays = _arrays(tensor, cuts, where)
    cut = [dims[number] for number in cuts]
    names = [axis for dim in cut for axis in dim.axes]
    if all(dim.exact for dim in cut) and len(set(names)) == len(names):
        placed = zip(cuts.values(), names, strict=True)
        return (*(Shard(shard.dim, axis, shard.blocks) for shard, axis in placed), *partials)
    ranges = [list(contiguous_ranges(array)) for array in arrays]
    if any(len(each) > 1 for each in ranges):
        raise LayoutError(
            f"{_shown(tensor)} has no layout: this rank's part is not contiguous in every "
            "dimension, and the mesh dimensions are not axes of the Point; use a mesh whose "
            "dimensions are axes of the Point, such as ctx.mesh"
        )
    offsets = tuple(start for ((start, _),) in ranges)
    lengths = tuple(length for ((_, length),) in ranges)
    return (
        Slices.rectangle(offsets, lengths, tuple(tensor.shape), tuple(dict.fromkeys(names))),
        *partials,
    )


def _shown(tensor: Any) -> str:
    """The beginning of an error message on a DTensor."""
    shape, mesh = list(tensor.shape), tensor.device_mesh
    return f"a DTensor of shape {shape} placed {tensor.placements} on {mesh}"


def _cuts(tensor: Any) -> dict[int, Shard]:
    """Maps each mesh dimension that shards the tensor to its Shard, outermost first.

    The axis of a Shard is the name of the mesh dimension (`_own_axis`).  A mesh dimension may
    divide what it gets from outer mesh dimensions into blocks, and shard each block separately.
    Its Shard then has the sizes of these blocks.
    """
    mesh = tensor.device_mesh
    cuts: dict[int, Shard] = {}
    for number, blocks in _outermost_first(tensor):
        if mesh.size(number) == 1:
            continue
        dim = tensor.placements[number].dim % tensor.ndim
        sizes: tuple[int, ...] = ()
        if blocks > 1:
            parts = math.prod(mesh.size(n) for n, shard in cuts.items() if shard.dim == dim)
            if tensor.shape[dim] % parts:
                raise LayoutError(
                    f"{_shown(tensor)} has no layout: its shards of dimension {dim} have unequal "
                    "lengths and are split again in blocks; use a multiple of "
                    f"{parts} as the size of dimension {dim}"
                )
            left = tensor.shape[dim] // parts
            size = -(-left // blocks)  # as torch.chunk does
            ends = [min(left, size * n) for n in range(blocks + 1)]
            sizes = tuple(end - start for start, end in itertools.pairwise(ends))
        cuts[number] = Shard(dim, _own_axis(number), sizes)
    return cuts


def _own_axis(number: int) -> str:
    return f"mesh dimension {number}"


def _arrays(tensor: Any, cuts: Mapping[int, Shard], where: Sequence[int]) -> list[Indices]:
    """The indices of the elements that this rank holds, for each dimension of the tensor.

    They follow from `cuts`, the result of `_cuts`, and from this rank's coordinates in the mesh,
    `where`.  Raises LayoutError if the local tensor has another shape than these indices give.
    """
    mesh = tensor.device_mesh
    own = [_own_axis(number) for number in range(mesh.ndim)]
    arrays = index_arrays(
        tuple(cuts.values()),
        dict(zip(own, where, strict=True)),
        dict(zip(own, mesh.shape, strict=True)),
        tensor.shape,
    )
    expected, local = tuple(map(len, arrays)), tuple(local_part(tensor).shape)
    if expected != local:
        raise LayoutError(
            f"{_shown(tensor)} has the local shape {list(local)} on this rank, but the placements "
            f"give {list(expected)}; correct the placements, or pass shape= and stride= to "
            "DTensor.from_local"
        )
    return arrays


def _outermost_first(tensor: Any) -> list[tuple[int, int]]:
    """The mesh dimensions that shard a DTensor, outermost first, each with its number of blocks.

    Mesh dimensions are ordered from left to right, except for one with a `_StridedShard`, as in
    FSDP2 over tensor parallelism.  This mesh dimension is moved to the right, past the next mesh
    dimensions that shard the same dimension of the tensor, until the product of the sizes of those
    passed equals its split factor.

    Most mesh dimensions have one block.  A `_StridedShard` has several if it has passed all such
    mesh dimensions and its split factor is still larger than the product of their sizes: the number
    of blocks is the split factor divided by this product.  Each block is then sharded separately,
    as in a fused projection, or in a flattened view of a tensor that is sharded in another
    dimension.
    """
    placements, mesh = tensor.placements, tensor.device_mesh
    order: list[tuple[int, int]] = []
    for number in range(len(placements) - 1, -1, -1):
        placement = placements[number]
        if not hasattr(placement, "dim"):
            continue
        factor, at = int(getattr(placement, "split_factor", 1)), 0
        while factor > 1:
            while at < len(order) and placements[order[at][0]].dim != placement.dim:
                at += 1
            if at == len(order):
                break
            inner, _ = order[at]
            if factor % mesh.size(inner):
                raise LayoutError(
                    f"{_shown(tensor)} has no layout: the split factor of {placement} cannot be "
                    "divided by the sizes of the later mesh dimensions that shard dimension "
                    f"{placement.dim}, so their order is unknown; let these mesh dimensions shard "
                    "different dimensions of the tensor"
                )
            factor //= mesh.size(inner)
            at += 1
        order.insert(at, (number, factor))
    return order


@dataclass(frozen=True, slots=True)
class MeshDim:
    """The axes of the Point that one dimension of a mesh corresponds to.

    `exact` is whether the dimension is one whole axis, with its ranks in order.  `whole` is whether
    it contains all ranks along its axes.
    """

    axes: tuple[str, ...]
    exact: bool
    whole: bool


def _by_rank(mesh: Any, where: Sequence[int], sizes: Sizes) -> list[MeshDim]:
    """The MeshDim of each dimension of a mesh, from the coordinates of its ranks in the Point.

    The axes of a MeshDim are those along which the coordinates of the dimension's ranks differ.
    `where` has this rank's coordinates in the mesh, and `sizes` the sizes of the Point's axes.
    """
    over = sizes_over(mesh_of(sizes), sizes)
    dims = []
    for number in range(mesh.ndim):
        line = tuple(slice(None) if i == number else w for i, w in enumerate(where))
        places = [coordinates_over(over, int(rank)) for rank in mesh.mesh[line]]
        axes = tuple(axis for axis in over if len({place[axis] for place in places}) > 1)
        whole = math.prod(sizes[axis] for axis in axes) == len(places)
        in_order = len(axes) == 1 and [s[axes[0]] for s in places] == list(range(len(places)))
        dims.append(MeshDim(axes, whole and in_order, whole))
    return dims


def _by_name(mesh: Any, mapping: Mapping[str, str | Sequence[str]]) -> list[MeshDim]:
    """The MeshDim of each dimension of a mesh, from the dimension's name.

    `mapping` maps names to axes, in addition to AXIS_NAMES.  Raises LayoutError for any other name,
    unless the dimension has size 1.
    """
    known = dict(AXIS_NAMES)
    for name, axis in mapping.items():
        known[name] = (axis,) if isinstance(axis, str) else tuple(axis)
    names = mesh.mesh_dim_names or ("(no name)",) * mesh.ndim
    mapped = []
    for number, name in enumerate(names):
        if mesh.size(number) == 1:
            mapped.append(known.get(name, ()))
        elif name not in known:
            raise LayoutError(
                f"the mesh dimension {name} is not one of {', '.join(known)}; rename the dimension "
                "(`mesh_dim_names=`), or map its name to an axis"
            )
        else:
            mapped.append(known[name])
    used = [a for number, axes in enumerate(mapped) for a in axes if mesh.size(number) > 1]
    dims = []
    for axes in mapped:
        whole = all(used.count(axis) == 1 for axis in axes)
        dims.append(MeshDim(axes, whole and len(axes) == 1, whole))
    return dims


def _partial(tensor: Any, placement: Any, dim: MeshDim) -> list[Placement]:
    op = getattr(placement, "reduce_op", None)
    if op not in ("sum", "avg") or type(placement).__name__ != "Partial":
        raise LayoutError(
            f"{_shown(tensor)} has no layout, because the placement {placement} is neither a sum "
            "nor a mean over ranks; redistribute the tensor to Replicate() or Shard()"
        )
    if not dim.whole:
        raise LayoutError(
            f"{_shown(tensor)} has no layout, because the placement {placement} covers only a part "
            f"of the ranks along {', '.join(dim.axes)}; redistribute the tensor to Replicate() or "
            "Shard(), or use a mesh dimension with all these ranks"
        )
    return [Partial(axis, op) for axis in dim.axes]
