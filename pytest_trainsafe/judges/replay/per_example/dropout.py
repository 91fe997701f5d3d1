"""Dropout whose mask depends only on the example and the position in the logical tensor.

The mask is not drawn from a generator: each of its elements follows from a hash of the example's
key (a number that `per_example_keys` returns), the name of the dropout and the element's logical
position. So a rank that holds a shard computes the mask of that shard alone, a recomputation gets
the mask of its forward, and the mask is the same on every device.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
import xxhash
from torch import Tensor, nn

from pytest_trainsafe.core.indices import index_arrays
from pytest_trainsafe.core.layout import Coordinates, Layout, Sizes
from pytest_trainsafe.core.usage import shown
from pytest_trainsafe.errors import ArgumentError, ArgumentTypeError

_BITS = 53


def _signed(word: int) -> int:
    """The int64 with the same bits as a 64-bit word."""
    return word - 2**64 if word >= 2**63 else word


_FIRST, _SECOND = _signed(0xBF58476D1CE4E5B9), _signed(0x94D049BB133111EB)


def per_example_dropout(
    x: Tensor,
    p: float,
    examples: Tensor,
    *,
    stream: str = "",
    training: bool = True,
    batch_dim: int = 0,
    positions: Mapping[int, Tensor] | None = None,
) -> Tensor:
    """Returns `x` with each element zeroed with probability `p`, and the others divided by 1 - p.

    `examples` has the keys that `per_example_keys` returns: an int64 tensor of shape
    [x.shape[batch_dim]], with one key for each entry of the batch dimension. `stream` names this
    dropout; two dropouts with the same name drop the same elements, so give each layer a
    different name. `positions` is needed if `x` is a shard of the logical tensor. It maps each
    sharded dimension to the logical positions of this rank's rows, an int64 tensor of shape
    [x.shape[dim]] (`logical_positions` computes them from a Layout). If sequences are packed into
    one dimension, `examples` has a key for each token, and `positions[batch_dim]` the token's
    position in its sequence. Returns `x` itself if `training` is False or p is 0. Raises
    ArgumentError or ArgumentTypeError for an invalid argument.
    """
    _check_settings(p, stream, batch_dim)
    _check(x, examples, batch_dim)
    if not training or p == 0:
        return x
    batch = batch_dim % x.ndim
    words = _words(x, examples, stream, batch, _along(x, {} if positions is None else positions))
    keep = (words >> 11) & (2**_BITS - 1)
    mask = (keep >= int(p * 2**_BITS)).to(x.dtype)
    return x.mul(mask if p == 1 else mask / (1 - p))


class PerExampleDropout(nn.Module):
    """`per_example_dropout` as a module, which does nothing in evaluation mode.

    `stream` is the name of the dropout, such as the module's path in the whole model. The name
    must differ from those of the model's other dropouts, and be the same on all ranks.
    """

    def __init__(self, p: float, stream: str, batch_dim: int = 0) -> None:
        super().__init__()
        _check_settings(p, stream, batch_dim)
        self.p, self.stream, self.batch_dim = p, stream, batch_dim

    def forward(
        self, x: Tensor, examples: Tensor, positions: Mapping[int, Tensor] | None = None
    ) -> Tensor:
        """Returns `x` with elements dropped; the arguments are those of `per_example_dropout`."""
        return per_example_dropout(
            x,
            self.p,
            examples,
            stream=self.stream,
            training=self.training,
            batch_dim=self.batch_dim,
            positions=positions,
        )

    def extra_repr(self) -> str:
        """The settings that `repr(model)` shows."""
        return f"p={self.p}, stream={self.stream!r}"


def logical_positions(
    layout: Layout,
    logical_shape: Sequence[int],
    coordinates: Coordinates,
    sizes: Sizes,
    device: torch.device | str = "cpu",
) -> dict[int, Tensor]:
    """Maps each sharded dimension to the positions of this rank's rows in the logical tensor.

    `logical_shape` is the shape of the logical tensor, and `layout` that of this rank's part.
    `coordinates` are the rank's coordinates on the mesh axes and `sizes` the sizes of the axes,
    such as `ctx.coordinates` and `ctx.point.sizes`. Raises LayoutError if the layout does not fit
    the shape, and ArgumentTypeError if it is not a sequence of placements.
    """
    if not isinstance(layout, Sequence):
        raise ArgumentTypeError(
            f"layout must be a tuple of placements, such as (Shard(1, 'tp'),), not {shown(layout)}"
        )
    arrays = index_arrays(layout, coordinates, sizes, logical_shape)
    return {
        dim: torch.from_numpy(array).to(device)
        for dim, (array, length) in enumerate(zip(arrays, logical_shape, strict=True))
        if len(array) != length
    }


def _words(
    x: Tensor, examples: Tensor, stream: str, batch: int, positions: Mapping[int, Tensor]
) -> Tensor:
    """A 64-bit hash for each element of `x`, from its example's key, `stream` and its position.

    `batch` is the batch dimension.  `positions` maps dimensions to the logical positions of their
    rows; the rows of other dimensions are numbered from 0.
    """
    words = _mixed(examples.to(x.device) ^ _hash(stream)).reshape(_shape(x, batch))
    for dim in range(x.ndim):
        along = positions.get(dim)
        if along is None:
            if dim == batch:
                continue
            along = torch.arange(x.shape[dim], device=x.device)
        odd = _hash(f"dimension {dim}") | 1
        words = words + ((along.to(x.device) + 1) * odd).reshape(_shape(x, dim))
    return _mixed(words)


def _hash(name: str) -> int:
    """The hash of a name, as an int64. The compiler evaluates it once, as a constant."""
    return _signed(xxhash.xxh3_64_intdigest(name.encode()))


torch.compiler.assume_constant_result(_hash)  # type: ignore[no-untyped-call]


def _mixed(words: Tensor) -> Tensor:
    """The finalizer of splitmix64 for int64.

    Products wrap around, as the algorithm requires. The masks remove the copies of the sign bit
    that shifts bring in.
    """
    words = (words ^ ((words >> 30) & (2**34 - 1))) * _FIRST
    words = (words ^ ((words >> 27) & (2**37 - 1))) * _SECOND
    return words ^ ((words >> 31) & (2**33 - 1))


def _shape(x: Tensor, dim: int) -> list[int]:
    return [-1 if each == dim else 1 for each in range(x.ndim)]


def _along(x: Tensor, positions: Mapping[int, Tensor]) -> dict[int, Tensor]:
    """The positions as int64, with negative keys replaced by the dimensions that they stand for.

    Raises ArgumentError unless each key is another dimension of `x`, with as many rows as
    positions, and ArgumentTypeError unless dimensions are mapped to tensors.
    """
    if not isinstance(positions, Mapping):
        raise ArgumentTypeError(
            "positions maps each sharded dimension to an int64 tensor, such as {1: position_ids}, "
            f"and is not {shown(positions)}"
        )
    found: dict[int, Tensor] = {}
    for dim, along in positions.items():
        pair: tuple[object, object] = dim, along
        if not (isinstance(pair[0], int) and isinstance(pair[1], Tensor)):
            raise ArgumentTypeError(
                "positions maps a dimension, an int, to a tensor of integers, and not "
                f"{shown(dim)} to {shown(along)}"
            )
        if not -x.ndim <= dim < x.ndim:
            raise ArgumentError(
                f"positions has the key {dim}, which is not a dimension of x; x has the shape "
                f"{list(x.shape)}"
            )
        whole = not (along.dtype.is_floating_point or along.dtype.is_complex)
        if along.shape != (x.shape[dim],) or not whole or along.dtype == torch.bool:
            raise ArgumentError(
                f"positions[{dim}] is a tensor of {along.dtype} and shape {list(along.shape)}, but "
                f"x has the shape {list(x.shape)}; pass integers of shape [{x.shape[dim]}]"
            )
        if dim % x.ndim in found:
            raise ArgumentError(
                f"positions has two keys for dimension {dim % x.ndim} of x, whose shape is "
                f"{list(x.shape)}; pass one"
            )
        found[dim % x.ndim] = along.to(torch.int64)
    return found


def _check_settings(p: float, stream: str, batch_dim: int) -> None:
    if not hasattr(p, "__float__"):
        raise ArgumentTypeError(f"p must be a number from 0 to 1, not {shown(p)}")
    if not 0 <= p <= 1:
        raise ArgumentError(f"p={p} is not a probability; give a number from 0 to 1")
    if not isinstance(stream, str):
        raise ArgumentTypeError(
            f"stream must be the name of the dropout, such as 'layers.0.drop', not {shown(stream)}"
        )
    if not isinstance(batch_dim, int):
        raise ArgumentTypeError(
            f"batch_dim must be the number of a dimension, not {shown(batch_dim)}"
        )


def _check(x: Tensor, examples: Tensor, batch_dim: int) -> None:
    if not isinstance(x, Tensor):
        raise ArgumentTypeError(f"x must be a tensor, not {shown(x)}; pass torch.as_tensor(x)")
    if hasattr(x, "placements"):
        raise ArgumentTypeError(
            "per_example_dropout takes a rank's local tensor, not a DTensor; pass x.to_local() and "
            "the positions of its rows, and wrap the result with DTensor.from_local"
        )
    if not (x.dtype.is_floating_point or x.dtype.is_complex):
        raise ArgumentTypeError(
            f"x is a tensor of {x.dtype}, but dropout divides its values; pass a tensor of a "
            "floating or complex dtype"
        )
    if not -x.ndim <= batch_dim < x.ndim:
        raise ArgumentError(
            f"batch_dim={batch_dim} is not a dimension of x, whose shape is {list(x.shape)}"
        )
    if getattr(examples, "dtype", None) != torch.int64:
        kind = getattr(examples, "dtype", None) or shown(examples)
        raise ArgumentTypeError(
            f"examples must be the int64 keys that per_example_keys returns, not {kind}"
        )
    if examples.shape != (x.shape[batch_dim],):
        raise ArgumentError(
            f"examples have the shape {list(examples.shape)}, but x has the shape {list(x.shape)} "
            f"and batch_dim={batch_dim}; pass {x.shape[batch_dim]} keys, one for each entry of "
            "that dimension"
        )
    if not torch.compiler.is_compiling() and _are_indices(examples):
        raise ArgumentError(
            f"examples are numbers from 0 to {int(examples.max())}, which are indices of examples "
            "and not keys; pass per_example_keys(epoch, indices), so that another epoch or seed "
            "drops other elements"
        )


def _are_indices(examples: Tensor) -> bool:
    """Whether all values are so small that they are indices, and not keys, which have 63 bits.

    One key in 2**39 is as small. Values on an accelerator, and those that a transformation of torch
    hides, are not read.
    """
    if type(examples) is not Tensor or not examples.is_cpu or not examples.numel():
        return False
    try:
        least, largest = torch.aminmax(examples)
        return int(least) >= 0 and int(largest) < 2**24
    except RuntimeError:  # under vmap
        return False
