"""Tables from exact numbers to exact numbers, which carry what is known of a value.

`exp` is uninterpreted, but exp(a + b) = exp(a) * exp(b).  The result of an addition is a new
number, from which its terms cannot be read; so where this matters, the sum's image below exp is
noted under the sum's value.  Tables are keyed by value, not by tensor: an image survives copies,
indexing and communication.
"""

from __future__ import annotations

import torch

Run = tuple[torch.Tensor, torch.Tensor]


class Images:
    """A table from packed numbers to packed numbers; an entry, once made, is kept.

    Zero is not noted: what is known of it needs no table, and most tensors have zeros.
    Entries are in sorted runs, oldest first, each at least twice as long as the next, so a table
    of n entries is sorted about log(n) times.
    """

    def __init__(self) -> None:
        self._runs: list[Run] = []

    def __bool__(self) -> bool:
        return bool(self._runs)

    def note(self, numbers: torch.Tensor, images: torch.Tensor) -> None:
        """Let each of `numbers` have the image at the same place, unless it has one."""
        keys = numbers.reshape(-1).view(torch.int64)
        values = images.reshape(-1).view(torch.int64)
        kept = keys != 0
        keys, values = keys[kept], values[kept]
        if not keys.numel():
            return
        run = _sorted(keys, values)
        while self._runs and len(self._runs[-1][0]) < 2 * len(run[0]):
            older = self._runs.pop()
            run = _sorted(torch.cat((older[0], run[0])), torch.cat((older[1], run[1])))
        self._runs.append(run)

    def find(self, numbers: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor] | None:
        """Which of `numbers` have an image, and the images; None if none has."""
        if not self._runs or not numbers.numel():
            return None
        wanted = numbers.contiguous().view(torch.int64)
        known: tuple[torch.Tensor, torch.Tensor] | None = None
        for keys, values in reversed(self._runs):
            places = torch.searchsorted(keys, wanted).clamp_(max=len(keys) - 1)
            found = keys[places] == wanted
            if not bool(found.any()):
                continue
            images = values[places].view(torch.float64)
            if known is None:
                known = found, images
            else:
                known = known[0] | found, torch.where(found, images, known[1])
        return known


def _sorted(keys: torch.Tensor, values: torch.Tensor) -> Run:
    """Entries by key, the first of those with equal keys."""
    keys, order = torch.sort(keys, stable=True)
    first = torch.ones_like(keys, dtype=torch.bool)
    first[1:] = keys[1:] != keys[:-1]
    return keys[first], values[order][first]
