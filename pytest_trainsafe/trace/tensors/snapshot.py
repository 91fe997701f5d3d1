"""A snapshot of a rank-local tensor, kept until its event is written: its bytes, or a sketch.

The writer takes it when the value is available.  The event may be written later: the gradient
of an output, for example, is the sum over several backward passes.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import torch
import xxhash

from pytest_trainsafe.compat.dispatch_modes import without_modes
from pytest_trainsafe.core.rungs.arithmetic import Arithmetic
from pytest_trainsafe.core.rungs.floating import FLOATING, arithmetic_of

Shape = tuple[int, ...]

#: Dtypes that NumPy reads without a copy.
NUMPY = frozenset(
    {
        torch.float64,
        torch.float32,
        torch.float16,
        torch.complex128,
        torch.complex64,
        torch.int64,
        torch.int32,
        torch.int16,
        torch.int8,
        torch.uint8,
        torch.bool,
    }
)


class TensorSnapshot(msgspec.Struct, frozen=True, eq=False):
    """A rank-local tensor at the time of the snapshot.

    Either `data` has its bytes, or `sketch` has the sketch of a part of a tensor of shape
    `logical`.  `numbers` encodes the values to a tensor of the dtype and shape `stored`, which has
    these bytes.
    """

    dtype: torch.dtype
    shape: Shape
    digest: str
    data: bytes | None = None
    sketch: npt.NDArray[np.float64] | None = None
    logical: Shape = ()
    numbers: Arithmetic = FLOATING
    encoded: tuple[torch.dtype, Shape] | None = None

    @property
    def stored(self) -> tuple[torch.dtype, Shape]:
        """The dtype and shape of the stored tensor."""
        return self.encoded or (self.dtype, self.shape)

    def __add__(self, other: TensorSnapshot) -> TensorSnapshot:
        """The sum of two snapshots of the same tensor, in the dtype of the first."""
        assert self.shape == other.shape
        if self.data is not None and other.data is not None:
            with without_modes():
                total = self.numbers.add(self.values(), other.values())
                return of_values(total, self.numbers)
        assert self.sketch is not None
        assert other.sketch is not None
        # Without the values, a hash of the hashes suffices: sums of equal terms have equal hashes.
        digest = xxhash.xxh3_128_hexdigest((self.digest + other.digest).encode())
        sketch = self.sketch + other.sketch
        return TensorSnapshot(self.dtype, self.shape, digest, None, sketch, self.logical)

    def values(self) -> torch.Tensor:
        """A copy of the values; the snapshot must have its bytes."""
        assert self.data is not None
        dtype, shape = self.stored
        if not self.data:
            return torch.empty(self.shape, dtype=self.dtype)
        flat = torch.frombuffer(bytearray(self.data), dtype=torch.uint8)
        return self.numbers.decode(flat.view(dtype).reshape(shape), self.shape)


def outside_modes(enclosed: bool) -> AbstractContextManager[object]:
    """Leaves the dispatch mode in which a rung computes a program, if the rung has one.

    What reads the bits of its numbers, or makes real values for them, must not be computed in it.
    """
    return without_modes() if enclosed else nullcontext()


def of_values(host: torch.Tensor, numbers: Arithmetic = FLOATING) -> TensorSnapshot:
    """A snapshot of a contiguous CPU tensor with all its values, as `numbers` stores them."""
    numbers = arithmetic_of(host.dtype, numbers)
    stored = numbers.encode(host)
    encoded = None
    if stored is not host:
        stored = stored.contiguous()
        own = stored.dtype == host.dtype and stored.shape == host.shape
        encoded = None if own else (stored.dtype, tuple(stored.shape))
    data, shape = as_array(stored).tobytes(), tuple(host.shape)
    digest = xxhash.xxh3_128_hexdigest(data)
    return TensorSnapshot(host.dtype, shape, digest, data, numbers=numbers, encoded=encoded)


def as_array(host: torch.Tensor) -> npt.NDArray[Any]:
    """A NumPy array that shares the memory of a contiguous CPU tensor without a gradient.

    A dtype that NumPy does not have is given as bytes.
    """
    found: npt.NDArray[Any] = (host if host.dtype in NUMPY else as_bytes(host)).numpy()
    return found


def as_bytes(host: torch.Tensor) -> torch.Tensor:
    """The bytes of a contiguous CPU tensor as a flat uint8 tensor that shares its memory."""
    return host.view(-1).view(torch.uint8)
