"""Caches the logical tensors of one trace for the judge.

Most tensors are needed once, some twice in succession, and parameters again a step later.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from typing import Generic, TypeVar

import torch

from pytest_trainsafe.align.logical import logical_tensor
from pytest_trainsafe.align.merge import Merged
from pytest_trainsafe.align.updates import ends
from pytest_trainsafe.core.tensor_id import TensorId
from pytest_trainsafe.trace.reader import Trace

#: The size limit of parameters kept between steps, in bytes.  It suffices for small parameters,
#: which are slower to merge than to read; a larger limit would let memory grow with the number of
#: layers.
KEPT = 2 * 2**20

_LASTING = frozenset({"param", "master_param"})


T = TypeVar("T")


class ByteLRU(Generic[T]):
    """A least-recently-used cache of at most `limit` bytes; `size` returns the bytes of a value."""

    def __init__(self, limit: int, size: Callable[[T], int]) -> None:
        self.limit = limit
        self.used = 0
        self._size = size
        self._values: OrderedDict[Hashable, tuple[T, int]] = OrderedDict()

    def get(self, key: Hashable) -> T | None:
        """The value of a key; None if it is not cached."""
        found = self._values.get(key)
        if found is None:
            return None
        self._values.move_to_end(key)
        return found[0]

    def keep(self, key: Hashable, value: T) -> None:
        """Cache a value, and evict the least recently used ones while the limit is exceeded.

        A value that is larger than the limit is not cached.
        """
        self.forget(key)
        size = self._size(value)
        if size > self.limit:
            return
        self._values[key] = value, size
        self.used += size
        while self.used > self.limit:
            _, (_, gone) = self._values.popitem(last=False)
            self.used -= gone

    def forget(self, key: Hashable) -> None:
        """Remove a key, if it is cached."""
        found = self._values.pop(key, None)
        if found is not None:
            self.used -= found[1]


class Values:
    """The logical tensors of `trace`, loaded on request.

    Caches the last tensor, and keeps parameters until their update is computed.
    """

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self._last: tuple[TensorId, Merged] | None = None
        self._kept = ByteLRU[Merged](KEPT, _bytes)

    def merged(self, id: TensorId, shape: Sequence[int] | None = None) -> Merged:
        """The logical tensor of `id` with the findings of its merge; `shape` is as in `merge`."""
        if self._last is not None and self._last[0] == id:
            return self._last[1]
        found = self._kept.get(id) if id.kind in _LASTING else None
        if found is None:
            found = logical_tensor(self.trace, id, shape)
            if id.kind in _LASTING:
                self._kept.keep(id, found)
        self._last = id, found
        return found

    def tensor(self, id: TensorId) -> torch.Tensor | None:
        """The logical tensor of `id`; None if its parts do not fit together."""
        return self.merged(id).tensor

    def update(self, id: TensorId) -> torch.Tensor | None:
        """The change of the parameter (or master copy) `id` in its step: value after minus before.

        None if one of the two values is missing or their shapes differ.
        """
        both = ends(self.trace, id)
        if both is None:
            return None
        before, after = both
        new, old = self.tensor(after), self.tensor(before)
        self._kept.forget(before)
        if new is None or old is None or new.shape != old.shape:
            return None
        return new - old


def _bytes(merged: Merged) -> int:
    return merged.tensor.nbytes if merged.tensor is not None else 0
