"""Tables from exact numbers to exact numbers, which carry what is known of a value.

`exp` is uninterpreted, but exp(a + b) = exp(a) * exp(b).  The result of an addition is a new
number, from which its terms cannot be read; so where this matters, the sum's image below exp is
noted under the sum's value.  Tables are keyed by value, not by tensor: an image survives copies,
indexing and communication.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch

from pytest_trainsafe.arithmetic.packing import BITS, Bits, bits_of

Run = tuple[Bits, Bits]

#: Ends each run: larger than the bits of any number.
_END = np.array([2**63 - 1])


class Noted:
    """Whether anything is noted of numbers, in any of the tables that share this object.

    It answers fast for most numbers, of which nothing is noted: it marks the high bits of each key,
    the low bits of its second residue, and bits of a product of the whole key.  The marks of the
    second residue are looked up first, and the others only for the few numbers that pass.  Fewer
    than one other number in four thousand counts as noted too, and about one in thirty thousand on
    average, so that few tensors of some thousand numbers do.
    """

    def __init__(self) -> None:
        self.tables: list[Images] = []
        self._count = 0
        self._grow(_LEAST)

    def add(self, keys: Bits) -> None:
        """Marks the keys of a run that is in one of the tables already."""
        self._count += len(keys)
        if self._count * _SPARSE <= self._size:
            self._mark(keys)
            return
        runs = [run for table in self.tables for run in table.noted_keys()]
        self._count = sum(map(len, runs))
        self._grow(1 << (2 * _SPARSE * self._count).bit_length())
        for run in runs:
            self._mark(run)

    def may_have(self, *numbers: Bits) -> bool:
        """False if nothing is noted of any of them."""
        return self._count > 0 and any(len(self.places(each)) for each in numbers)

    def places(self, numbers: Bits) -> Bits:
        """The places of numbers, in one dimension, of which something may be noted."""
        flat = numbers.reshape(-1)
        found: Bits = self._low.take(flat & self._size - 1).nonzero()[0]
        if len(found):
            few = flat[found]
            found = found[self._high.take(self._top(few)) & self._mixed.take(self._mix(few))]
        return found

    def _mark(self, keys: Bits) -> None:
        self._high[self._top(keys)] = True  # one after the other, because keys are sorted
        self._low[keys & self._size - 1] = True
        self._mixed[self._mix(keys)] = True

    def _top(self, keys: Bits) -> Bits:
        return keys >> self._shift & self._size - 1

    def _mix(self, keys: Bits) -> Bits:
        """A product depends on all lower bits of its factor at each place."""
        return keys * _FACTOR >> _PLACE & self._size - 1

    def _grow(self, size: int) -> None:
        self._size = size
        self._shift = 2 * BITS + 1 - size.bit_length()
        self._high, self._low, self._mixed = (np.zeros(size, dtype=np.bool_) for _ in range(3))


#: The fewest marks, and how many there are at least for each key; both are powers of two.
_LEAST, _SPARSE = 1 << 14, 16

#: An odd factor, and the lowest bit that is taken of a product.
_FACTOR, _PLACE = np.int64(0x1E3779B97F4A7C15), 31


class Images:
    """A table from packed numbers to packed numbers; an entry, once made, is kept.

    Zero is not noted: what is known of it needs no table, and most tensors have zeros.
    Entries are in sorted runs, oldest first, each at least twice as long as the next, so a table
    of n entries is sorted about log(n) times.  The runs are arrays of numpy, whose calls on small
    arrays take a fraction of torch's time.
    """

    def __init__(self, noted: Noted | None = None) -> None:
        self._noted = noted or Noted()
        self._noted.tables.append(self)
        self._runs: list[Run] = []

    def __bool__(self) -> bool:
        return bool(self._runs)

    def noted_keys(self) -> Iterator[Bits]:
        """The sorted keys of each run."""
        for keys, _ in self._runs:
            yield keys[:-1]

    def note(self, numbers: torch.Tensor, images: torch.Tensor) -> None:
        """Let each of `numbers` have the image at the same place, unless it has one."""
        self.note_bits(bits_of(numbers).reshape(-1), bits_of(images).reshape(-1))

    def note_bits(self, keys: Bits, values: Bits) -> None:
        """The same of bits, in one dimension."""
        kept = keys != 0
        if not kept.any():
            return
        run = _sorted(keys[kept], values[kept])
        new = run[0][:-1]
        while self._runs and len(self._runs[-1][0]) < 2 * len(run[0]):
            older = self._runs.pop()
            run = _sorted(
                *(np.concatenate((a[:-1], b[:-1])) for a, b in zip(older, run, strict=True))
            )
        self._runs.append(run)
        self._noted.add(new)

    def find(
        self, numbers: torch.Tensor, bits: Bits | None = None
    ) -> tuple[torch.Tensor, torch.Tensor] | None:
        """Which of `numbers` have an image, and the images; None if none has.

        `bits` are those of the numbers, if the caller has them.
        """
        if not self._runs or not numbers.numel():
            return None
        wanted = (bits_of(numbers) if bits is None else bits).reshape(-1)
        likely = self._noted.places(wanted)
        if not len(likely):
            return None
        few = wanted[likely]
        known, values = np.zeros(len(few), dtype=np.bool_), np.zeros_like(few)
        for keys, found_images in reversed(self._runs):
            places = keys.searchsorted(few)
            found = keys[places] == few
            known |= found
            np.copyto(values, found_images[places], where=found)
        if not known.any():
            return None
        mask, images = np.zeros(len(wanted), dtype=np.bool_), np.zeros_like(wanted)
        mask[likely], images[likely] = known, values
        return (
            torch.from_numpy(mask).view(numbers.shape),
            torch.from_numpy(images).view(torch.float64).view(numbers.shape),
        )


def _sorted(keys: Bits, values: Bits) -> Run:
    """Entries by key, the first of those with equal keys, and the end."""
    order = np.argsort(keys, kind="stable")
    keys = keys[order]
    first = np.ones(len(keys), dtype=np.bool_)
    np.not_equal(keys[1:], keys[:-1], out=first[1:])
    return np.append(keys[first], _END), np.append(values[order][first], _END)
