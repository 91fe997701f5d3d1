"""A snapshot of a rank-local tensor, kept until its event is written: its bytes, or a sketch.

The writer takes it when the value is available.  The event may be written later: the gradient
of an output, for example, is the sum over several backward passes.
"""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import torch
import xxhash

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
    `logical`.
    """

    dtype: torch.dtype
    shape: Shape
    digest: str
    data: bytes | None = None
    sketch: npt.NDArray[np.float64] | None = None
    logical: Shape = ()

    def __add__(self, other: TensorSnapshot) -> TensorSnapshot:
        """The sum of two snapshots of the same tensor, in the dtype of the first."""
        assert self.shape == other.shape
        if self.data is not None and other.data is not None:
            total = self.values() + other.values().to(self.dtype)
            return of_bytes(self.dtype, self.shape, total)
        assert self.sketch is not None
        assert other.sketch is not None
        # Without the values, a hash of the hashes suffices: sums of equal terms have equal hashes.
        digest = xxhash.xxh3_128_hexdigest((self.digest + other.digest).encode())
        sketch = self.sketch + other.sketch
        return TensorSnapshot(self.dtype, self.shape, digest, None, sketch, self.logical)

    def values(self) -> torch.Tensor:
        """A copy of the values; the snapshot must have its bytes."""
        assert self.data is not None
        if not self.data:
            return torch.empty(self.shape, dtype=self.dtype)
        flat = torch.frombuffer(bytearray(self.data), dtype=torch.uint8)
        return flat.view(self.dtype).reshape(self.shape)


def of_bytes(dtype: torch.dtype, shape: Shape, host: torch.Tensor) -> TensorSnapshot:
    """A snapshot of a contiguous CPU tensor with all its values."""
    data = as_array(host).tobytes()
    return TensorSnapshot(dtype, shape, xxhash.xxh3_128_hexdigest(data), data)


def as_array(host: torch.Tensor) -> npt.NDArray[Any]:
    """A NumPy array that shares the memory of a contiguous CPU tensor without a gradient.

    A dtype that NumPy does not have is given as bytes.
    """
    found: npt.NDArray[Any] = (host if host.dtype in NUMPY else as_bytes(host)).numpy()
    return found


def as_bytes(host: torch.Tensor) -> torch.Tensor:
    """The bytes of a contiguous CPU tensor as a flat uint8 tensor that shares its memory."""
    return host.view(-1).view(torch.uint8)
