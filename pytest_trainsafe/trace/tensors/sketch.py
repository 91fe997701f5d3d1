"""A sketch: random projections of a rank's part of a tensor, which estimate norms of differences.

The tensor is viewed as a matrix: its last dimension gives the columns, all others the rows.  With
signs r for rows and c for columns, entry (p, q) of the sketch is the sum over all elements of
r[p, i] * x[i, j] * c[q, j].  The signs are those of the *logical* indices, so sketches of shards
and of partial sums add up to the sketch of the logical tensor, the sketch of a difference is the
difference of the sketches, and the mean square of its entries is an unbiased estimate of the
squared norm.  docs/tolerances.md derives the variance.  (Alon, Matias and Szegedy 1996; the
product of signs is that of tensor sketches, Pham and Pagh 2013.)

Called by the writer of a trace, in the ranks, and by align for tensors with recorded values.
"""

from __future__ import annotations

import functools
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from pytest_trainsafe.core.indices import (
    Indices,
    LayoutError,
    contiguous_ranges,
    index_arrays,
    scale_shape,
    split_flat,
)
from pytest_trainsafe.core.layout import Coordinates, Layout, Sizes
from pytest_trainsafe.trace.tensors.signs import Signs, signs
from pytest_trainsafe.trace.tensors.snapshot import NUMPY

Values = npt.NDArray[np.float64]

#: The number of signs for each row and for each column; a sketch has an entry for every pair.
ROWS, COLUMNS = 8, 16

#: Bytes of a sketch.  Tensors of at most this size are kept whole instead.
SIZE = ROWS * COLUMNS * 8

#: A vector is viewed as a matrix of this many columns.
WIDTH = 64

#: Maximum number of elements that are converted to a wider dtype at a time, in a buffer that fits
#: the processor's cache; and of columns among them.
TILE, WIDEST = 2**16, 2**13

#: Matrices of at most this many elements are multiplied by NumPy, whose calls take half as long as
#: torch's; torch is faster for larger ones.
SMALL = 2**15

#: Maximum bytes of signs that are cached for later tensors of the same shape and layout.
KEPT_SIGNS = 64 * 2**20

_ROW_SALT, _COLUMN_SALT = 1, 2


@dataclass(frozen=True, slots=True)
class _Band:
    """The signs for a band, some adjacent columns of a matrix, in tiles of `height` rows.

    `left` is the band's first column, and `columns` has the signs of the band's columns.  For each
    tile, `tiles` has the signs of its rows and a buffer for its values in a wider dtype.
    """

    left: int
    height: int
    tiles: tuple[tuple[torch.Tensor, torch.Tensor], ...]
    columns: torch.Tensor


@dataclass(frozen=True, slots=True)
class _Place:
    """The signs for a part of a logical tensor, which follow from the part's place in the tensor.

    `logical` is the shape of the logical tensor.  `rows` has the signs of the rows of each matrix
    that `_matrices` makes of the part; `columns` has the signs of the columns, the same for each.
    A vector's part may consist of several contiguous ranges; `contiguous_ranges` holds the first
    index and the length of each (empty if the part is one matrix without padding).  `small` has the
    signs of the rows and of the columns of a small matrix as arrays, else None.  For other
    matrices, `bands` maps the dtype in which sums are computed to the bands (adjacent columns) of
    each matrix.
    """

    logical: tuple[int, ...]
    rows: tuple[torch.Tensor, ...]
    columns: torch.Tensor
    contiguous_ranges: tuple[tuple[int, int], ...] = ()
    small: tuple[Signs, Signs] | None = None
    bands: dict[torch.dtype, list[list[_Band]]] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        # Half-precision tensors have bands in float32 as well.
        return 3 * sum(t.nbytes for t in (*self.rows, self.columns)) // 2


class Sketcher:
    """Makes the sketches of one rank's parts; caches the signs that they share."""

    def __init__(self, coordinates: Coordinates, sizes: Sizes) -> None:
        self.coordinates = coordinates
        self.sizes = sizes
        self._places: OrderedDict[tuple[Layout, torch.Size, bool], _Place | None]
        self._places = OrderedDict()
        self._kept = 0
        self._buffers: dict[torch.dtype, torch.Tensor] = {}

    def sketch(
        self,
        part: torch.Tensor,
        layout: Layout,
        *,
        exact: bool = False,
        array: npt.NDArray[Any] | None = None,
    ) -> tuple[Values, tuple[int, ...]] | None:
        """The sketch of a contiguous CPU tensor, [8, 16] in float64, and the logical shape.

        `part` is this rank's part of the logical tensor.  The logical shape is derived from the
        part's shape and layout.  If a dimension is split unevenly, a rank cannot know it and ranks
        derive different shapes: the caller must check that the shapes agree before it adds
        sketches.
        Returns None if the layout does not fit the part, or the part has no elements.
        Integers are exact up to 2**53; a NaN or an infinity makes entries NaN or infinite.
        Half-precision values of large tensors are summed in float32, whose rounding errors are
        negligible compared to those of half precision.  With `exact`, all sums are in float64.
        `array` is the part as an array of its bits, if the caller has it.
        """
        if layout:
            try:
                layout, flat = split_flat(layout)
            except LayoutError:
                return None
            if flat is not None:  # elements outside of the range contribute nothing
                part, piece = part.new_zeros(flat.shape), part
                if piece.shape != (flat.length,) or flat.offset + flat.length > part.numel():
                    return None
                part.view(-1)[flat.offset : flat.offset + flat.length] = piece
                array = None
        if not part.numel() or not part.ndim:
            return None
        key = (layout, part.shape, part.is_complex())
        if key in self._places:
            self._places.move_to_end(key)
            place = self._places[key]
        else:
            place = self._places[key] = self._find(part, layout)
            self._bound(place)
        if place is None:
            return None
        if place.small is not None:
            left, right = place.small
            if array is None or part.dtype not in NUMPY:
                array = (part if part.dtype in NUMPY else part.to(torch.float64)).numpy()
            wide = array.reshape(left.shape[1], len(right)).astype(np.float64, copy=False)
            # Not `@`, which warns about values that are not finite.
            return left.dot(wide).dot(right), place.logical
        dtype = torch.float32 if part.dtype in _HALF and not exact else torch.float64
        matrices = _matrices(part, place)
        if dtype not in place.bands:
            place.bands[dtype] = [self._bands(rows, place.columns, dtype) for rows in place.rows]
        total = torch.zeros(ROWS, COLUMNS, dtype=torch.float64)
        for matrix, bands in zip(matrices, place.bands[dtype], strict=True):
            for band in bands:
                total += _projected(matrix, band)
        # A copy in NumPy's memory.  Torch's aligned allocations, kept by the thousand between
        # large temporary tensors, would fragment the memory that those reuse.
        return total.numpy().copy(), place.logical

    def _bands(self, rows: torch.Tensor, columns: torch.Tensor, wide: torch.dtype) -> list[_Band]:
        """Splits a matrix into tiles that fit the processor's cache in the dtype `wide`."""
        if wide not in self._buffers:
            self._buffers[wide] = torch.empty(TILE, dtype=wide)
        buffer = self._buffers[wide]
        bands = []
        for left in range(0, len(columns), WIDEST):
            signs = columns[left : left + WIDEST].to(wide)
            height = TILE // len(signs)
            tiles = tuple(
                (tile, buffer[: tile.shape[1] * len(signs)].view(-1, len(signs)))
                for tile in torch.split(rows.to(wide), height, dim=1)
            )
            bands.append(_Band(left, height, tiles, signs))
        return bands

    def _find(self, part: torch.Tensor, layout: Layout) -> _Place | None:
        shape = tuple(part.shape)
        try:
            logical = scale_shape(shape, layout, self.sizes)
            arrays = index_arrays(layout, self.coordinates, self.sizes, logical)
        except LayoutError:
            return None
        if tuple(map(len, arrays)) != shape:
            return None
        if part.is_complex():  # the real and the imaginary part are two columns
            arrays = [*arrays[:-1], _pairs(arrays[-1])]
        rows: tuple[torch.Tensor, ...]
        pieces: tuple[tuple[int, int], ...] = ()
        if len(shape) > 1:
            rows = (_row_signs(_flat(arrays[:-1], logical[:-1])),)
            columns = _column_signs(arrays[-1])
        else:
            pieces = tuple(contiguous_ranges(arrays[0]))
            rows = tuple(
                _row_signs(np.arange(start // WIDTH, -(-(start + length) // WIDTH)))
                for start, length in pieces
            )
            columns = _width_signs()
            if len(pieces) == 1 and not any(number % WIDTH for number in pieces[0]):
                pieces = ()  # a matrix without padding
        few = not pieces and part.numel() <= SMALL and not part.is_complex()
        small = (rows[0].numpy(), columns.numpy()) if few else None
        return _Place(logical, rows, columns, pieces, small)

    def _bound(self, place: _Place | None) -> None:
        """Limits the cache, to which `place` was added last, to KEPT_SIGNS bytes of signs.

        Evicts the least recently used places, with their signs, but never the last place.
        """
        self._kept += place.nbytes if place is not None else 0
        while self._kept > KEPT_SIGNS and len(self._places) > 1:
            _, oldest = self._places.popitem(last=False)
            self._kept -= oldest.nbytes if oldest is not None else 0


def _matrices(part: torch.Tensor, place: _Place) -> list[torch.Tensor]:
    """The part as matrices of real numbers, one for each entry of `place.rows`.

    The sketch multiplies each matrix by the signs of its rows (in `place.rows`) and of its columns
    (`place.columns`).  A complex number becomes two columns.  A vector becomes one matrix for each
    of its contiguous ranges, padded with zeros to whole rows; any other part becomes one matrix.
    """
    real = torch.view_as_real(part.resolve_conj()) if part.is_complex() else part
    if not place.contiguous_ranges:
        return [real.reshape(-1, len(place.columns))]
    flat, matrices, here = real.reshape(-1), [], 0
    for start, length in place.contiguous_ranges:
        before = start % WIDTH
        padded = flat.new_zeros(-(-(before + length) // WIDTH) * WIDTH)
        padded[before : before + length] = flat[here : here + length]
        matrices.append(padded.view(-1, WIDTH))
        here += length
    return matrices


def _projected(matrix: torch.Tensor, band: _Band) -> torch.Tensor:
    """What a band, some adjacent columns of `matrix`, adds to the sketch: [8, 16] in float64.

    This is the product `row signs @ these columns @ column signs`.  One tile of rows at a time is
    converted to the dtype in which sums are computed.
    """
    sums: torch.Tensor | None = None
    part = matrix.narrow(1, band.left, len(band.columns))
    for tile, (rows, buffer) in zip(torch.split(part, band.height), band.tiles, strict=True):
        wide = tile if tile.dtype == buffer.dtype else buffer.copy_(tile)
        sums = rows @ wide if sums is None else sums.addmm_(rows, wide)
    assert sums is not None
    return (sums @ band.columns).to(torch.float64)


_HALF = frozenset({torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.float8_e5m2})


def _row_signs(indices: Indices) -> torch.Tensor:
    return torch.from_numpy(signs(indices, ROWS, _ROW_SALT))


def _column_signs(indices: Indices) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(signs(indices, COLUMNS, _COLUMN_SALT).T))


@functools.cache
def _width_signs() -> torch.Tensor:
    return _column_signs(np.arange(WIDTH))


def _pairs(columns: Indices) -> Indices:
    return np.stack([2 * columns, 2 * columns + 1], axis=-1).reshape(-1)


def _flat(arrays: Sequence[Indices], shape: Sequence[int]) -> Indices:
    """Returns flat, row-major indices into a tensor of `shape`.

    `arrays` has some indices along each dimension; the result has one flat index for every
    combination of them.
    """
    flat = arrays[0]
    for array, length in zip(arrays[1:], shape[1:], strict=True):
        flat = (flat[:, None] * length + array).reshape(-1)
    return flat
