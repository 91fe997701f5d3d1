"""Tables from exact numbers to exact numbers, which carry what is known of a value.

`exp` is uninterpreted, but exp(a + b) = exp(a) * exp(b).  The result of an addition is a new
number, from which its terms cannot be read; so where this matters, the sum's image below exp is
noted under the sum's value.  Tables are keyed by value, not by tensor: an image survives copies,
indexing and communication.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

Bits = npt.NDArray[np.int64]
Run = tuple[Bits, Bits]

#: Ends each run: larger than the bits of any number.
_END = np.array([2**63 - 1])


class Images:
    """A table from packed numbers to packed numbers; an entry, once made, is kept.

    Zero is not noted: what is known of it needs no table, and most tensors have zeros.
    Entries are in sorted runs, oldest first, each at least twice as long as the next, so a table
    of n entries is sorted about log(n) times.  The runs are arrays of numpy, whose calls on small
    arrays take a fraction of torch's time.
    """

    def __init__(self) -> None:
        self._runs: list[Run] = []

    def __bool__(self) -> bool:
        return bool(self._runs)

    def note(self, numbers: torch.Tensor, images: torch.Tensor) -> None:
        """Let each of `numbers` have the image at the same place, unless it has one."""
        keys, values = _bits(numbers), _bits(images)
        kept = keys != 0
        if not kept.any():
            return
        run = _sorted(keys[kept], values[kept])
        while self._runs and len(self._runs[-1][0]) < 2 * len(run[0]):
            older = self._runs.pop()
            run = _sorted(
                *(np.concatenate((a[:-1], b[:-1])) for a, b in zip(older, run, strict=True))
            )
        self._runs.append(run)

    def find(self, numbers: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor] | None:
        """Which of `numbers` have an image, and the images; None if none has."""
        if not self._runs or not numbers.numel():
            return None
        wanted = _bits(numbers)
        known: tuple[npt.NDArray[np.bool_], Bits] | None = None
        for keys, found_images in reversed(self._runs):
            places = keys.searchsorted(wanted)
            found = keys[places] == wanted
            if not found.any():
                continue
            images = found_images[places]
            if known is None:
                known = found, images
            else:
                known = known[0] | found, np.where(found, images, known[1])
        if known is None:
            return None
        mask, values = (torch.from_numpy(each).view(numbers.shape) for each in known)
        return mask, values.view(torch.float64)


def _bits(numbers: torch.Tensor) -> Bits:
    """The bits of numbers, copied: torch does not resize memory that numpy has seen."""
    copied = numbers.detach().reshape(-1).view(torch.int64).clone()
    bits: Bits = copied.numpy(force=True)
    return bits


def _sorted(keys: Bits, values: Bits) -> Run:
    """Entries by key, the first of those with equal keys, and the end."""
    order = np.argsort(keys, kind="stable")
    keys = keys[order]
    first = np.ones(len(keys), dtype=np.bool_)
    np.not_equal(keys[1:], keys[:-1], out=first[1:])
    return np.append(keys[first], _END), np.append(values[order][first], _END)
