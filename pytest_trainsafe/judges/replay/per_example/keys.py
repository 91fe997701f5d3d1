"""Keys of examples: hashes of (seed, stream, epoch, index), independent of how data is sharded.

The finest unit of data parallelism is the example: any two examples may be computed at the same
time, on any rank, while the operations on one example happen in order. So each example has separate
random numbers (DETrain, section 3.3).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
import xxhash

from pytest_trainsafe.core.usage import shown
from pytest_trainsafe.errors import ArgumentError, ArgumentTypeError

_WORD = 2**64
_GOLDEN = 0x9E3779B97F4A7C15

#: The largest key.  Keys have 63 bits, so that an int64 tensor can hold them.
_KEY = 2**63 - 1


def per_example_keys(
    epoch: int,
    indices: Sequence[int] | torch.Tensor,
    *,
    seed: int = 0,
    stream: str = "",
    device: torch.device | str | None = None,
) -> torch.Tensor:
    """Returns the keys of the examples `indices` in an epoch, an int64 tensor [len(indices)].

    A key is a hash of the seed, the stream, the epoch and the example's index in the dataset,
    and of nothing else: not of the rank, the worker or the batch. Different streams give an
    example independent keys. The keys are on `device`, by default the device of the indices;
    indices on an accelerator are copied to the host first. Raises ArgumentError for a negative
    number or an unknown device, and ArgumentTypeError for an argument of the wrong type.
    """
    if device is not None:
        _check_device(device)
    given: object = indices
    if isinstance(indices, torch.Tensor):
        if indices.ndim != 1 or indices.dtype.is_floating_point or indices.dtype.is_complex:
            raise ArgumentTypeError(
                "per_example_keys takes the indices as a sequence of int or as an integer tensor "
                f"of one dimension, not a tensor of {indices.dtype} and shape "
                f"{list(indices.shape)}"
            )
        device = indices.device if device is None else device
        indices = indices.tolist()
    elif not isinstance(given, Iterable):
        raise ArgumentTypeError(
            "per_example_keys takes the indices as a sequence of int or as an integer tensor of "
            f"one dimension, not {shown(given)}; pass a list also for one example"
        )
    base = _base(epoch, seed, stream)
    keys = [_key(base, index) for index in indices]
    return torch.tensor(keys, dtype=torch.int64, device=device)


def per_example_generator(
    epoch: int,
    index: int,
    *,
    seed: int = 0,
    stream: str = "",
    device: torch.device | str = "cpu",
) -> torch.Generator:
    """A new generator for one example in one epoch, seeded with its key (`per_example_keys`).

    Every rank or worker that computes the example draws the same numbers from it. Each call
    makes a new generator at the start of its stream, so no two threads or workers share one.
    torch seeds its CPU generator with only the lower 32 bits of the key, so among 100 000
    examples about one pair draws equal numbers on the CPU. Raises ArgumentError or
    ArgumentTypeError for an invalid argument.
    """
    _check_device(device)
    generator = torch.Generator(device)
    generator.manual_seed(example_key(epoch, index, seed, stream))
    return generator


def example_key(epoch: int, index: int, seed: int, stream: str) -> int:
    """The key of one example in one epoch (`per_example_keys`), a number of 63 bits."""
    return _key(_base(epoch, seed, stream), index)


def _base(epoch: int, seed: int, stream: str) -> int:
    if not isinstance(stream, str):
        raise ArgumentTypeError(
            f"stream must be a name, such as 'augmentation', not {shown(stream)}"
        )
    whole = _whole("epoch", epoch), _whole("seed", seed)
    return xxhash.xxh3_64_intdigest(f"{whole[1]}/{whole[0]}/{stream}".encode())


def _key(base: int, index: int) -> int:
    """The number at `index` of the splitmix64 stream from `base` (Steele et al., OOPSLA 2014)."""
    word = (base + (_whole("index", index) + 1) * _GOLDEN) % _WORD
    word = (word ^ (word >> 30)) * 0xBF58476D1CE4E5B9 % _WORD
    word = (word ^ (word >> 27)) * 0x94D049BB133111EB % _WORD
    return (word ^ (word >> 31)) & _KEY


def _check_device(device: object) -> None:
    if isinstance(device, torch.device):
        return
    if not isinstance(device, str):
        raise ArgumentTypeError(
            f"device must be a torch.device or its name, such as 'cuda:0', not {shown(device)}"
        )
    try:
        torch.device(device)
    except RuntimeError as error:
        raise ArgumentError(
            f"device={shown(device)} is not a device of torch; pass a name such as 'cpu' or "
            "'cuda:0'"
        ) from error


def _whole(name: str, value: object) -> int:
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise ArgumentTypeError(f"{name} must be an integer of at least 0, not {shown(value)}")
    try:
        number: int = value.__index__()
    except TypeError as error:  # a tensor of another dtype or of several numbers
        raise ArgumentTypeError(f"{name} must be one integer, not {shown(value)}") from error
    if number < 0:
        raise ArgumentError(f"{name}={number} is below 0; count epochs, examples and seeds from 0")
    return number
