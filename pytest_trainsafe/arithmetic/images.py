"""Tables from exact numbers to exact numbers, which carry what is known of a value.

`exp` is uninterpreted, but exp(a + b) = exp(a) * exp(b).  The result of an addition is a new
number, from which its terms cannot be read; so where this matters, the sum's image below exp is
noted under the sum's value.  Tables are keyed by value, not by tensor: an image survives copies,
indexing and communication.
"""

from __future__ import annotations

import torch


class Images:
    """A table from packed numbers to packed numbers; an entry, once made, is kept."""

    def __init__(self) -> None:
        self._keys = torch.empty(0, dtype=torch.int64)
        self._values = torch.empty(0, dtype=torch.int64)
        self._new: list[tuple[torch.Tensor, torch.Tensor]] = []

    def __bool__(self) -> bool:
        return bool(self._new) or self._keys.numel() > 0

    def note(self, numbers: torch.Tensor, images: torch.Tensor) -> None:
        """Let each of `numbers` have the image at the same place, unless it has one."""
        keys = numbers.reshape(-1).view(torch.int64)
        if keys.numel():
            self._new.append((keys.clone(), images.reshape(-1).view(torch.int64).clone()))

    def find(self, numbers: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor] | None:
        """Which of `numbers` have an image, and the images; None if none has."""
        self._sort()
        if not self._keys.numel() or not numbers.numel():
            return None
        wanted = numbers.contiguous().view(torch.int64)
        places = torch.searchsorted(self._keys, wanted).clamp_(max=self._keys.numel() - 1)
        found = self._keys[places] == wanted
        if not bool(found.any()):
            return None
        return found, self._values[places].view(torch.float64)

    def _sort(self) -> None:
        if not self._new:
            return
        keys = torch.cat([self._keys, *(each for each, _ in self._new)])
        values = torch.cat([self._values, *(each for _, each in self._new)])
        self._new.clear()
        keys, order = torch.sort(keys, stable=True)
        first = torch.ones_like(keys, dtype=torch.bool)
        first[1:] = keys[1:] != keys[:-1]
        self._keys, self._values = keys[first], values[order][first]
