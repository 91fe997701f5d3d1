"""The logical tensors of one trace as the judge asks for them.

It asks for most of them once, for some twice at once, and for parameters again a step later.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from pytest_trainsafe.align.logical import logical_tensor
from pytest_trainsafe.align.merge import Merged
from pytest_trainsafe.core.tensor_id import TensorId
from pytest_trainsafe.judge.compare.memory import Memory
from pytest_trainsafe.judge.compare.updates import ends
from pytest_trainsafe.trace.reader import Trace

#: Parameters kept from one step to the next, in bytes: small ones, which cost more to put together
#: than to read.  With more, comparing takes memory that grows with the number of layers.
KEPT = 2 * 2**20

_LASTING = frozenset({"param", "master_param"})


class Values:
    """Logical tensors of `trace`; the last one is kept, and parameters until their update."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self._last: tuple[TensorId, Merged] | None = None
        self._kept = Memory[Merged](KEPT, _bytes)

    def merged(self, id: TensorId, shape: Sequence[int] | None = None) -> Merged:
        """The logical tensor of `id`, and what was wrong on the way; `shape` as in `merge`."""
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
        """The parameter (or master copy) `id` after its step minus before it, if it has both."""
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
