"""Consistent tensors: values that depend only on a name, a seed and an index.

TTrace section 4.2 draws the full tensor from a seeded generator and takes each rank's part of it.
Here every element is a hash of (key, seed, index), so a rank computes only its part, and the
values are bit-identical on every device, with every library version, at every Point.
Called by `ctx.initialize` and by perturbations, inside the ranks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import numpy.typing as npt
import torch
import xxhash

from pytest_trainsafe.core.cut_text import is_encodable
from pytest_trainsafe.core.indices import Indices, has_zeros, index_arrays, scale, split_flat
from pytest_trainsafe.core.layout import Coordinates, Layout, Partial, Shard, Sizes
from pytest_trainsafe.core.usage import listing, shown
from pytest_trainsafe.errors import ArgumentError, ArgumentTypeError

#: Elements computed at a time; bounds memory and fits the cache.
BLOCK = 2**16

_FIELD = 2**16
#: Mean and standard deviation of the sum of four uniform integers of 16 bits.
_SUM_MEAN = 4 * (_FIELD - 1) / 2
_SUM_STD = math.sqrt(4 * (_FIELD**2 - 1) / 12)

#: Spreads bits of a word to its high ones.
_ODD = np.uint64(0x9E3779B97F4A7C15)

#: By dtype, the number of significant bits and the exponent of the smallest positive value.
_GRIDS = {
    torch.bfloat16: (8, -133),
    torch.float16: (11, -24),
    torch.float32: (24, -149),
}

Words = npt.NDArray[np.uint64]
Values = npt.NDArray[np.float64]


def consistent_tensor(
    key: str,
    shape: Sequence[int],
    *,
    mean: float = 0.0,
    std: float = 1.0,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
    seed: int = 0,
    layout: Layout = (),
    coordinates: Coordinates | None = None,
    sizes: Sizes | None = None,
    representable: torch.dtype | None = torch.bfloat16,
    distinct: bool = False,
) -> torch.Tensor:
    """Returns this rank's part of a logical tensor of `shape` with approximately normal values.

    The values depend only on `key`, `seed` and their position.  A value is the sum of four 16-bit
    fields of its hash, shifted and scaled; it is within mean +- 3.47 std.  It is rounded to a value
    of the dtype `representable` (None: not rounded), so that the logical values are the same in
    every dtype at least as wide; bfloat16, float16 and float32 are supported.  Of many values some
    are equal, unless they are `distinct` and not rounded: each is then changed by less than
    std / 10 000.
    If `layout` is a sum over an axis (Partial), one rank gets the values and the others get zeros
    (`has_zeros`).
    Raises ArgumentTypeError if `dtype` is not a torch dtype, and ArgumentError for an unsupported
    `representable` or if `coordinates` or `sizes` lack an axis of `layout`.
    """
    if not isinstance(dtype, torch.dtype):
        raise ArgumentTypeError(
            f"consistent_tensor takes a torch dtype, such as torch.float32, not {shown(dtype)}"
        )
    if representable is not None and representable not in _GRIDS:
        raise ArgumentError(
            f"consistent_tensor takes representable=None or one of {listing(map(str, _GRIDS))}, "
            f"not {representable!r}"
        )
    axes = {placement.axis for placement in layout if isinstance(placement, Shard | Partial)}
    if lacking := sorted(axes - {*(coordinates or {})} | axes - {*(sizes or {})}):
        raise ArgumentError(
            f"consistent_tensor was given a layout over {listing(lacking)}, but not this rank's "
            "coordinates and the sizes of the axes; pass coordinates=ctx.coordinates and "
            "sizes=ctx.point.sizes"
        )
    scale = std / _SUM_STD

    def normal(words: Words) -> Values:
        total = np.zeros(words.shape, dtype=np.uint64)
        for shift in (0, 16, 32, 48):
            total += (words >> np.uint64(shift)) & np.uint64(_FIELD - 1)
        terms: Values = total.astype(np.float64)
        if distinct:
            terms += (words * _ODD >> np.uint64(30)) * 2.0**-34
        values: Values = (terms - _SUM_MEAN) * scale + mean
        return values if representable is None else _round(values, *_GRIDS[representable])

    values = _generate(key, shape, seed, layout, coordinates, sizes, normal)
    return torch.from_numpy(values).to(dtype).to(device)


def consistent_integers(
    key: str,
    shape: Sequence[int],
    high: int,
    *,
    device: torch.device | str = "cpu",
    seed: int = 0,
    layout: Layout = (),
    coordinates: Coordinates | None = None,
    sizes: Sizes | None = None,
) -> torch.Tensor:
    """Returns this rank's part of a logical int64 tensor of `shape`, uniform in 0 to `high` - 1.

    `high` is at most 2**32.  Use it for token ids, labels and positions.
    """
    assert 0 < high <= 2**32, high

    def uniform(words: Words) -> Values:
        scaled: Words = ((words >> np.uint64(32)) * np.uint64(high)) >> np.uint64(32)
        return scaled.astype(np.float64)  # exact, since below 2**32

    values = _generate(key, shape, seed, layout, coordinates, sizes, uniform)
    return torch.from_numpy(values).to(torch.int64).to(device)


def _generate(
    key: str,
    shape: Sequence[int],
    seed: int,
    layout: Layout,
    coordinates: Coordinates | None,
    sizes: Sizes | None,
    convert: Callable[[Words], Values],
) -> Values:
    if not is_encodable(key):
        raise ArgumentError(
            f"the key {key!r} of a consistent tensor contains a lone surrogate, which UTF-8 cannot "
            "encode; pass another name"
        )
    where = coordinates or {}
    layout, flat_range = split_flat(layout)
    arrays = index_arrays(layout, where, sizes or {}, shape)
    local = tuple(map(len, arrays))
    values = np.zeros(local, dtype=np.float64)
    if has_zeros(layout, where):
        return values if flat_range is None else np.zeros(flat_range.length, dtype=np.float64)
    stream = np.uint64(xxhash.xxh3_64_intdigest(key.encode(), seed=seed & (2**64 - 1)))
    elements = values.reshape(-1)
    done = 0
    for indices in _flat_indices(arrays, shape):
        elements[done : done + len(indices)] = convert(_splitmix64(stream, indices))
        done += len(indices)
    assert done == elements.size
    elements *= scale(layout, sizes or {})
    if flat_range is not None:
        return elements[flat_range.offset : flat_range.offset + flat_range.length]
    return values


def _flat_indices(arrays: Sequence[Indices], shape: Sequence[int]) -> Iterator[Indices]:
    """The logical flat index of every local element, in local order, block by block."""
    if not arrays:
        yield np.zeros(1, dtype=np.int64)
        return
    strides = [math.prod(shape[dim + 1 :]) for dim in range(len(shape))]
    offsets = [array * stride for array, stride in zip(arrays, strides, strict=True)]
    # Join trailing dimensions while they fit into a block; iterate over the leading ones.
    tail = np.zeros(1, dtype=np.int64)
    while len(offsets) > 1 and len(tail) * len(offsets[-1]) <= BLOCK:
        tail = (offsets.pop()[:, None] + tail).reshape(-1)
    last = offsets.pop()
    step = max(1, BLOCK // max(1, len(tail)))
    for head in np.ndindex(*map(len, offsets)):
        base = sum(int(offset[i]) for offset, i in zip(offsets, head, strict=True))
        for start in range(0, len(last), step):
            yield (last[start : start + step, None] + (tail + base)).reshape(-1)


def _splitmix64(stream: np.uint64, indices: Indices) -> Words:
    """The value at each index of the splitmix64 stream (Steele, Lea and Flood, OOPSLA 2014)."""
    words: Words = (indices.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    words += stream
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))


def _round(values: Values, bits: int, smallest: int) -> Values:
    """Rounds to `bits` significant bits and to multiples of 2**smallest, ties to even."""
    dropped = 53 - bits
    raw = values.view(np.uint64)
    odd = (raw >> np.uint64(dropped)) & np.uint64(1)
    kept = ~np.uint64((1 << dropped) - 1)
    rounded: Values = ((raw + np.uint64((1 << (dropped - 1)) - 1) + odd) & kept).view(np.float64)
    subnormal = np.abs(values) < 2.0 ** (smallest + bits)
    if subnormal.any():
        unit = 2.0**smallest
        rounded[subnormal] = np.rint(values[subnormal] / unit) * unit
    return rounded
