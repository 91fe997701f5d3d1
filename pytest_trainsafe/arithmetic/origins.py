"""What enters a run: numbers that reach an operator unseen, and a hash of all integers.

Notices float tensors that no watched operator made.

A real double in [0, 2) has the bits of an exact number.  torch.from_numpy, torch.frombuffer and
kernels outside of the dispatcher make such tensors.  So the memory of every tensor that the mode
makes or enters is noted, and a float tensor in other memory is refused.
"""

from __future__ import annotations

import torch
import xxhash
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


class Integers:
    """A hash of the integers and masks that met numbers: data, indices, routings, decisions.

    The order in which they are added does not change it.
    """

    def __init__(self) -> None:
        self._sum = 0

    def add(self, operator: str, tensor: torch.Tensor) -> None:
        """Adds a tensor that an operator was given."""
        head = f"{operator} {tensor.dtype} {tuple(tensor.shape)}".encode()
        # A copy, because torch does not resize memory that numpy has seen.
        copied = tensor.detach().clone(memory_format=torch.contiguous_format)
        content = copied.numpy(force=True).tobytes()
        self._sum += xxhash.xxh3_64_intdigest(content, xxhash.xxh3_64_intdigest(head))

    def hexdigest(self) -> str:
        return f"{self._sum % 2**64:016x}"
