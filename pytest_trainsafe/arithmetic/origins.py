"""Notices numbers that reach an operator unseen: float tensors that no watched operator made.

A real double in [0, 2) has the bits of an exact number.  torch.from_numpy, torch.frombuffer and
kernels outside of the dispatcher make such tensors.  So the memory of every tensor that the mode
makes or enters is noted, and a float tensor in other memory is refused.
"""

from __future__ import annotations

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from pytest_trainsafe.compat.tensors import address_of


class Origins:
    """The memory of tensors whose float64 values are known to be of the mode's kind."""

    def __init__(self) -> None:
        self._known: dict[int, StorageWeakRef] = {}
        self._limit = 1024

    def note(self, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        address = address_of(storage)
        if address in self._known:
            return
        if len(self._known) >= self._limit:
            self._known = {
                key: each
                for key, each in self._known.items()
                if not each.expired()  # type: ignore[no-untyped-call]
            }
            self._limit = 2 * len(self._known) + 1024
        # The reference keeps the number of the memory from being used again.
        self._known[address] = StorageWeakRef(storage)  # type: ignore[no-untyped-call]

    def knows(self, tensor: torch.Tensor) -> bool:
        return tensor.numel() == 0 or address_of(tensor.untyped_storage()) in self._known
