"""Merges the ranks' parts of one tensor, and reports where they do not fit together.

Called by `align/logical.py` for a trace, and by judges for parts that they build themselves.
Checks for overlaps and omissions (TTrace section 4.1), and that replicas are bit-identical.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Iterator, Sequence

import numpy as np
import torch

from pytest_trainsafe.align.assembly import Assembly
from pytest_trainsafe.align.flat import join_ranges
from pytest_trainsafe.align.merged import Merged
from pytest_trainsafe.align.replicas import replica_message
from pytest_trainsafe.align.words import describe, name_rows, too_many_rows, wrong_rows
from pytest_trainsafe.core.finding import Finding
from pytest_trainsafe.core.indices import Indices, LayoutError, index_arrays, insert, logical_shape
from pytest_trainsafe.core.layout import (
    Coordinates,
    Flat,
    Layout,
    Owned,
    Part,
    Partial,
    Scaled,
    Sizes,
    Slices,
    Split,
    common_form,
)
from pytest_trainsafe.core.mesh import OverMesh, coordinates_over, mesh_of, rank_at
from pytest_trainsafe.core.rungs.arithmetic import Arithmetic
from pytest_trainsafe.core.rungs.floating import FLOATING, arithmetic_of
from pytest_trainsafe.core.tensor_id import TensorId
from pytest_trainsafe.core.usage import name_ranks

__all__ = ["Merged", "Part", "merge"]


def merge(
    parts: Sequence[Part],
    sizes: Sizes,
    *,
    shape: Sequence[int] | None = None,
    free_axes: Sequence[str] = ("pp",),
    where: TensorId | None = None,
    numbers: Arithmetic = FLOATING,
) -> Merged:
    """Merges the parts that ranks hold of one logical tensor.

    `shape` is the logical shape if it is known, usually that of the reference.  A part that is
    longer than `shape` allows is then reported as an overlap, and a shorter part as a hole.
    `free_axes` are the axes along which only some ranks need to hold the tensor: `pp`, and `dp` for
    a tensor of one micro-batch.  An axis, here and in layouts, is a mesh axis, or a role such as
    `dp`, which stands for all mesh axes that have the role.
    `numbers` is the arithmetic of the rung.  Partial layouts are summed by it, in float64 if it is
    that of floating point, and exactly for integers.
    """
    assert parts, "a logical tensor has at least one part"
    parts = sorted(parts, key=lambda part: part.rank)
    numbers = arithmetic_of(parts[0].tensor.dtype, numbers)
    if any(isinstance(placement, Flat) for part in parts for placement in part.layout):
        return _merge_ranges(parts, sizes, shape, free_axes, where, numbers)
    whole = tuple(shape) if shape is not None else None
    geometry = (_is_loss(where), *_geometry(parts, sizes, whole, free_axes))
    known = _known.get(geometry)
    if known is not None:
        tensors = [part.tensor for part in parts]
        if known.replicas_equal(tensors):
            dtype = accumulator(tensors[0].dtype, summed=known.add)
            return Merged(known.assemble(tensors, dtype, numbers), parts=parts)
    merger = _Merger(parts, sizes, where, numbers)
    merged = merger.run(whole, free_axes)
    if merger.fits is not None:
        if len(_known) >= _MAX_KNOWN:
            _known.clear()
        _known[geometry] = merger.fits
    return merged


def _merge_ranges(
    parts: list[Part],
    sizes: Sizes,
    shape: Sequence[int] | None,
    free_axes: Sequence[str],
    where: TensorId | None,
    numbers: Arithmetic,
) -> Merged:
    """Joins Flat ranges first, and merges the joined parts."""
    merger = _Merger(parts, sizes, where, numbers)
    if not merger.consistent():
        return Merged(None, merger.findings, parts)
    try:
        joined = join_ranges(parts, sizes, numbers)
    except LayoutError as error:
        merger.fail("layout", f"{error}; {merger.source}")
        return Merged(None, merger.findings, parts)
    for check, message in joined.problems:
        merger.fail(check, f"{message}; {merger.source}")
    free = (*free_axes, *joined.axes)
    merged = merge(joined.parts, sizes, shape=shape, free_axes=free, where=where, numbers=numbers)
    missing = merged.missing
    if joined.missing:
        holes = merge(joined.holes(), sizes, shape=shape, free_axes=free).tensor
        if holes is not None:
            missing = holes.bool() if missing is None else holes.bool() | missing
    return Merged(merged.tensor, [*merger.findings, *merged.findings], parts, missing)


#: The Assembly of parts that fitted together, by their `_geometry`.
_known: dict[tuple[object, ...], Assembly] = {}
_MAX_KNOWN = 2048


def _is_loss(where: TensorId | None) -> bool:
    return where is not None and where.kind == "loss"


def _geometry(
    parts: list[Part], sizes: Sizes, whole: tuple[int, ...] | None, free_axes: Sequence[str]
) -> tuple[object, ...]:
    """A key such that lists of parts with equal keys fit together in the same way.

    The key contains the ranks, coordinates, layouts, shapes and dtypes of the parts, the shape
    `whole` of the logical tensor (None if unknown), `free_axes` (the axes along which only some
    ranks need to hold the tensor), and the mesh with the sizes of its axes.
    """
    each = [
        (p.rank, *p.coordinates.items(), p.layout, p.tensor.shape, p.tensor.dtype) for p in parts
    ]
    return whole, tuple(free_axes), mesh_of(sizes), tuple(sizes.items()), *each


class _Merger:
    def __init__(
        self, parts: list[Part], sizes: Sizes, where: TensorId | None, numbers: Arithmetic
    ) -> None:
        self.parts = parts
        self.numbers = numbers
        self.sizes = sizes
        self.where = where
        self.findings: list[Finding] = []
        self.holders = name_ranks([part.rank for part in parts])
        self.source = f"layout from {parts[0].layout_source}: {describe(parts[0].layout)}"
        self.fits: Assembly | None = None

    def run(self, shape: tuple[int, ...] | None, free_axes: Sequence[str]) -> Merged:
        tensor = missing = None
        if self.consistent():
            try:
                held = [(p.layout, p.coordinates, tuple(p.tensor.shape)) for p in self.parts]
                whole = logical_shape(held, self.sizes)
                if shape is not None and shape != whole and self.check_lengths(shape):
                    whole = shape  # a part is missing, so the parts do not determine the shape
                arrays = self.arrays(whole)
            except LayoutError as error:
                self.fail("layout", f"{error}; {self.source}")
            else:
                self.check_missing(whole, free_axes)
                groups = self.groups(arrays)
                self.check_replicas(arrays, groups)
                assembly = self.assembly(whole, arrays, groups)
                tensor = self.assemble(assembly)
                missing = self.missing(assembly, arrays)
                if all(finding.check == "replicas" for finding in self.findings):
                    self.fits = assembly
        return Merged(tensor, self.findings, self.parts, missing)

    def fail(self, check: str, message: str) -> None:
        self.findings.append(
            Finding(verdict="fail", judge="align", check=check, message=message, where=self.where)
        )

    def consistent(self) -> bool:
        """Whether the ranks agree on the layout as far as a merge needs; adds findings if not."""
        first = self.parts[0]
        for part in self.parts[1:]:
            if part.tensor.dtype != first.tensor.dtype:
                self.fail(
                    "layout",
                    f"rank {part.rank} holds dtype {part.tensor.dtype}, but rank {first.rank} "
                    f"holds {first.tensor.dtype}; {self.source}",
                )
                break
        for part in self.parts[1:]:
            if part.tensor.ndim != first.tensor.ndim or common_form(part.layout) != common_form(
                first.layout
            ):
                self.fail(
                    "layout",
                    f"the layouts of ranks disagree: on rank {part.rank} the tensor has "
                    f"{part.tensor.ndim} dimensions and the layout {describe(part.layout)} "
                    f"(from {part.layout_source}), but on rank {first.rank} it has "
                    f"{first.tensor.ndim} dimensions and the layout {describe(first.layout)} "
                    f"(from {first.layout_source})",
                )
                return False
        return True

    def check_lengths(self, whole: tuple[int, ...]) -> bool:
        """Whether every part has the length that its layout gives, in each dimension.

        Adds a finding for each dimension in which parts are too long or too short.
        """
        if len(whole) != self.parts[0].tensor.ndim:
            self.fail(
                "layout",
                f"ranks hold tensors with {self.parts[0].tensor.ndim} dimensions, but the logical "
                f"tensor has shape {list(whole)}; {self.source}",
            )
            return False
        fits = True
        expected = {
            part.rank: [len(a) for a in index_arrays(part.layout, *self.at(part), whole)]
            for part in self.parts
        }
        held = logical_shape(
            [(p.layout, p.coordinates, tuple(p.tensor.shape)) for p in self.parts], self.sizes
        )
        for dim, length in enumerate(whole):
            for check, wrong in (("overlap", operator.gt), ("hole", operator.lt)):
                odd = [p for p in self.parts if wrong(p.tensor.shape[dim], expected[p.rank][dim])]
                if odd:
                    fits = False
                    ranks = [part.rank for part in odd]
                    has, due = odd[0].tensor.shape[dim], expected[odd[0].rank][dim]
                    rows = f"of dimension {dim}"
                    text = too_many_rows(ranks, has, held[dim], length, rows, len(self.parts))
                    text = text or wrong_rows(check, ranks, has, due, length, rows)
                    self.fail(check, f"{text}; {self.source}")
        return fits

    def at(self, part: Part) -> tuple[Coordinates, Sizes]:
        return part.coordinates, self.sizes

    def arrays(self, whole: tuple[int, ...]) -> dict[int, list[Indices]]:
        """Maps each rank to the indices, in each dimension of the whole tensor, of its part.

        `whole` is the shape of the whole tensor.  Raises LayoutError for a part of another shape
        than its layout gives it.
        """
        arrays = {p.rank: index_arrays(p.layout, *self.at(p), whole) for p in self.parts}
        for part in self.parts:
            expected = tuple(map(len, arrays[part.rank]))
            if expected != tuple(part.tensor.shape):
                raise LayoutError(
                    f"rank {part.rank} holds a part of shape {list(part.tensor.shape)}, but its "
                    f"layout gives it a part of shape {list(expected)} of the logical tensor of "
                    f"shape {list(whole)}"
                )
        return arrays

    def check_missing(self, whole: tuple[int, ...], free_axes: Sequence[str]) -> None:
        """Adds findings for ranks that should hold a part of the tensor but recorded none.

        `whole` is the shape of the tensor.  `free_axes` are the axes along which only some ranks
        need to hold it.  If one rank holds a part, all ranks with the same coordinates on
        `free_axes` should hold one.  The `check` of a finding is "hole" if no rank holds the
        elements of the absent part, and "missing" if other ranks hold the same elements, so that
        the absent part is a replica, or one term of a sum.
        """
        layout = self.parts[0].layout
        if any(isinstance(p, Slices) for p in layout):
            return  # `check_coverage` counts the coverage of rectangles
        mesh = mesh_of(self.sizes)
        cut = mesh.expand(_split_axes(layout))
        summed = mesh.expand(p.axis for p in layout if isinstance(p, Partial))
        # Only the stages that hold a copy of a parameter contribute to a sum over pp, and only the
        # dp ranks that ran a micro-batch contribute to its loss.
        terms = mesh.expand(("pp", "dp") if _is_loss(self.where) else ("pp",))
        free = [
            axis
            for axis in mesh.expand(free_axes)
            if axis not in cut and (axis in terms or axis not in summed)
        ]
        bound = [axis for axis in self.sizes if axis not in free]
        holders = {_pick(p.coordinates, self.sizes) for p in self.parts}
        held = {_pick(p.coordinates, cut) for p in self.parts}
        owners = {_owners(layout, p.coordinates, self.sizes) for p in self.parts}
        missing: list[int] = []
        holes: dict[tuple[int, ...], list[Coordinates]] = {}
        for stage in dict.fromkeys(_pick(p.coordinates, free) for p in self.parts):
            for there in itertools.product(*(range(self.sizes[axis]) for axis in bound)):
                coordinates = self.stand([*free, *bound], [*stage, *there])
                region = _pick(coordinates, cut)
                if _owners(layout, coordinates, self.sizes) not in owners:
                    continue
                if region not in held:
                    holes.setdefault(region, []).append(coordinates)
                elif _pick(coordinates, self.sizes) not in holders:
                    missing.append(rank_at(coordinates, self.sizes))
        for absent in holes.values():
            ranks = sorted(rank_at(coordinates, self.sizes) for coordinates in absent)
            rows = name_rows(index_arrays(layout, absent[0], self.sizes, whole), whole)
            self.fail(
                "hole",
                f"{name_ranks(ranks)} recorded no part, so no rank holds {rows}; "
                f"the tensor is held by {self.holders}; {self.source}",
            )
        if missing:
            what = f"a term of the sum over {', '.join(summed)}" if summed else "a replica"
            self.fail(
                "missing",
                f"{name_ranks(sorted(missing))} should hold {what} but recorded none; "
                f"the tensor is held by {self.holders}; {self.source}",
            )

    def stand(self, axes: Sequence[str], numbers: Sequence[int]) -> Coordinates:
        """The coordinates of one rank: `numbers` are its coordinates along `axes`, in this order.

        `axes` must contain every mesh axis.
        """
        at = dict(zip(axes, numbers, strict=True))
        if isinstance(self.sizes, OverMesh):
            return coordinates_over(self.sizes, rank_at(at, self.sizes))
        return at

    def groups(self, arrays: dict[int, list[Indices]]) -> list[list[int]]:
        """Groups the indices of parts that are replicas.

        Replicas have the same elements and, if parts are terms of a sum, are the same term.
        """
        groups: dict[tuple[object, ...], list[int]] = {}
        for place, part in enumerate(self.parts):
            terms = tuple(part.coordinates[p.axis] for p in part.layout if isinstance(p, Partial))
            region = self.region(part, arrays[part.rank])
            groups.setdefault((region, terms), []).append(place)
        return list(groups.values())

    def check_replicas(self, arrays: dict[int, list[Indices]], groups: list[list[int]]) -> None:
        for group in groups:
            replicas = [self.parts[place] for place in group]
            message = replica_message(
                [(part.rank, part.coordinates, part.tensor) for part in replicas],
                arrays[replicas[0].rank],
                self.numbers,
            )
            if message:
                self.fail("replicas", f"{message}; {self.source}")

    def assembly(
        self, whole: tuple[int, ...], arrays: dict[int, list[Indices]], groups: list[list[int]]
    ) -> Assembly:
        partials = [p for p in self.parts[0].layout if isinstance(p, Partial)]
        return Assembly.of(
            whole,
            groups,
            [arrays[self.parts[group[0]].rank] for group in groups],
            add=bool(partials),
            divisors=[
                self.sizes[p.axis]
                for p in self.parts[0].layout
                if isinstance(p, Scaled) or (isinstance(p, Partial) and p.op == "avg")
            ],
        )

    def assemble(self, assembly: Assembly) -> torch.Tensor:
        dtype = accumulator(self.parts[0].tensor.dtype, summed=assembly.add)
        return assembly.assemble([part.tensor for part in self.parts], dtype, self.numbers)

    def missing(self, assembly: Assembly, arrays: dict[int, list[Indices]]) -> torch.Tensor | None:
        """A mask of the elements that no part holds; None if there are none."""
        if assembly.whole_group:
            return None
        if _rectangle(self.parts[0].layout):
            self.check_coverage(count := self.count(assembly.whole, arrays))
        elif any(finding.check == "hole" for finding in self.findings):
            count = self.count(assembly.whole, arrays)
        else:
            return None
        missing = count == 0
        return missing if bool(missing.any()) else None

    def count(self, whole: tuple[int, ...], arrays: dict[int, list[Indices]]) -> torch.Tensor:
        """How many parts cover each element; replicas and terms of one sum count once."""
        count = torch.zeros(whole, dtype=torch.int32)
        covered: set[tuple[object, ...]] = set()
        for part in self.parts:
            region = self.region(part, arrays[part.rank])
            if region not in covered:
                covered.add(region)
                ones = torch.ones((), dtype=torch.int32).expand(part.tensor.shape)
                insert(count, ones, arrays[part.rank], add=True)
        return count

    def region(self, part: Part, arrays: list[Indices]) -> tuple[object, ...]:
        """A key that is equal for parts with the same elements of the logical tensor."""
        if _rectangle(part.layout):
            return tuple(array.tobytes() for array in arrays)
        return _pick(part.coordinates, _split_axes(part.layout))

    def check_coverage(self, count: torch.Tensor) -> None:
        """Adds findings for elements that no rectangle holds, or that more than one holds.

        Only rectangles (Slices) need this check: in other layouts each element has one place.
        """
        for check, verb, wrong in (
            ("overlap", "held by more than one part", count > 1),
            ("hole", "held by no rank", count == 0),
        ):
            found = int(wrong.sum())
            if found:
                at = tuple(int(i) for i in np.argwhere(wrong.numpy())[0])
                self.fail(
                    check,
                    f"{found} of {count.numel()} elements are {verb}, the first at {at}; "
                    f"the tensor is held by {self.holders}; {self.source}",
                )


def accumulator(dtype: torch.dtype, summed: bool) -> torch.dtype:
    """The dtype of a merged tensor: exact for the values and wide enough for sums."""
    if dtype.is_complex:
        return torch.complex128
    if dtype.is_floating_point:
        return torch.float64
    return dtype if dtype == torch.bool and not summed else torch.int64


def _rectangle(layout: Layout) -> bool:
    return any(isinstance(p, Slices) for p in layout)


def _owners(layout: Layout, coordinates: Coordinates, sizes: Sizes) -> tuple[int, ...]:
    """The owner indices of a rank, one for each Owned placement of the layout."""
    return tuple(p.owner(coordinates, sizes) for p in layout if isinstance(p, Owned))


def _split_axes(layout: Layout) -> list[str]:
    axes = [p.axis for p in layout if isinstance(p, Split)]
    return list(dict.fromkeys(axes))


def _pick(coordinates: Coordinates, axes: Iterator[str] | Sequence[str] | Sizes) -> tuple[int, ...]:
    return tuple(coordinates[axis] for axis in axes)
