"""Stateless random signs: the sign of an index is a hash of the index alone.

Every rank, Run and machine therefore gives an element of a logical tensor the same signs,
however the tensor is split.  Called by the sketch.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from pytest_trainsafe.core.indices import Indices

Signs = npt.NDArray[np.float64]

#: The number of signs that one 64-bit hash gives.
MAX_SIGNS = 32


def signs(indices: Indices, count: int, salt: int) -> Signs:
    """`count` (at most 32) signs, +1 or -1, for each index, in shape [count, len(indices)].

    Families of signs with different `salt` are independent.
    """
    assert 0 < count <= MAX_SIGNS, count
    bits = _mixed(indices.astype(np.uint64) ^ np.uint64(salt << 48))
    # Use the upper bits: in a product of odd numbers the lower bits depend on fewer input bits.
    places = np.arange(64 - count, 64, dtype=np.uint64)[:, None]
    ones = (bits[None, :] >> places) & np.uint64(1)
    return 1.0 - 2.0 * ones.astype(np.float64)


def _mixed(values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """The finaliser of splitmix64 (Steele, Lea and Flood 2014), applied twice."""
    for _ in range(2):
        values = values + np.uint64(0x9E3779B97F4A7C15)
        values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        values = values ^ (values >> np.uint64(31))
    return values
