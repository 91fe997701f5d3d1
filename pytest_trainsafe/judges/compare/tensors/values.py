"""Caches the logical tensors of one trace for the judge.

Most tensors are needed once, some twice in succession, and parameters again a step later.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import TypeVar

import torch
from cachetools import LRUCache

from pytest_trainsafe.align.logical import logical_tensor
from pytest_trainsafe.align.merge import Merged
from pytest_trainsafe.align.updates import ends
from pytest_trainsafe.core.rungs.floating import arithmetic_of
from pytest_trainsafe.core.tensor_id import TensorId
from pytest_trainsafe.trace.reader import Trace

#: The size limit of parameters kept between steps, in bytes.  It suffices for small parameters,
#: which are slower to merge than to read; a larger limit would let memory grow with the number of
#: layers.
KEPT = 2 * 2**20

_LASTING = frozenset({"param", "master_param"})


K = TypeVar("K")
V = TypeVar("V")


def keep(cache: LRUCache[K, V], key: K, value: V) -> None:
    """Caches a value, unless it alone is larger than the cache."""
    with contextlib.suppress(ValueError):
        cache[key] = value


class Values:
    """The logical tensors of `trace`, loaded on request.

    Caches the last tensor, and keeps parameters until their update is computed.
    """

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self._last: tuple[TensorId, Merged] | None = None
        self._kept: LRUCache[TensorId, Merged] = LRUCache(KEPT, _bytes)

    def merged(self, id: TensorId, shape: Sequence[int] | None = None) -> Merged:
        """The logical tensor of `id` with the findings of its merge; `shape` is as in `merge`."""
        if self._last is not None and self._last[0] == id:
            return self._last[1]
        found = self._kept.get(id) if id.kind in _LASTING else None
        if found is None:
            found = logical_tensor(self.trace, id, shape)
            if id.kind in _LASTING:
                keep(self._kept, id, found)
        self._last = id, found
        return found

    def tensor(self, id: TensorId) -> torch.Tensor | None:
        """The logical tensor of `id`; None if its parts do not fit together or are missing."""
        return self.merged(id).whole

    def update(self, id: TensorId) -> torch.Tensor | None:
        """The change of the parameter (or master copy) `id` in its step: value after minus before.

        None if one of the two values is missing or their shapes differ.
        """
        both = ends(self.trace, id)
        if both is None:
            return None
        before, after = both
        new, old = self.tensor(after), self.tensor(before)
        self._kept.pop(before, None)
        if new is None or old is None or new.shape != old.shape:
            return None
        return arithmetic_of(new.dtype, self.trace.numbers).subtract(new, old)


def _bytes(merged: Merged) -> int:
    return merged.tensor.nbytes if merged.tensor is not None else 0
