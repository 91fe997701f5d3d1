"""Reads facts on tensors: hashes of their content, norms and flags.

Reading them does not disturb the program.
"""

from __future__ import annotations

import ctypes
import functools
import math
import weakref
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, TypeVar

import torch
import xxhash

from pytest_trainsafe.compat.dispatch_keys import has_own_code
from pytest_trainsafe.compat.dispatch_modes import modes_active, without_modes
from pytest_trainsafe.compat.tensors import is_view as is_view_of_another
from pytest_trainsafe.compat.tensors import local_part, version_of
from pytest_trainsafe.judges.learn.events.events import TensorFacts

#: What torch raises for tensors without memory of their own: fake, functional, nested and such.
_UNREADABLE = (RuntimeError, NotImplementedError, TypeError, AttributeError)

#: The version and the address of a tensor: unchanged while nobody wrote through this tensor.
Key = tuple[int, int]

Result = TypeVar("Result")

#: Elements that are compared to notice a write that changes neither the version nor the address.
SAMPLED = 4096

_HALF = (torch.float16, torch.bfloat16)


@functools.cache
def dtype_name(dtype: torch.dtype) -> str:
    """The dtype as tables name it: "float32"."""
    return str(dtype).removeprefix("torch.")


@functools.cache
def device_name(device: torch.device) -> str:
    """The device as text."""
    return str(device)


class _Known(weakref.ref[object]):
    """A weak reference to an object that was seen, with the object's number.

    For a tensor, `facts` are the facts that were read last; `key` and `sample` are what `key_of`
    and `_sample` returned at that time.
    """

    __slots__ = ("address", "facts", "key", "number", "sample", "unsettled")

    number: int
    address: int
    key: Key | None
    sample: int | None
    facts: TensorFacts | None
    unsettled: bool


class Objects:
    """Numbers objects from 1 in the order in which they are first seen, and reads tensors.

    The facts on a tensor, such as its hash and norm, are cached until its version or its address
    changes, or, for a parameter, one of up to `SAMPLED` evenly spread elements: FSDP and ZeRO may
    gather new weights into the same memory without a new version.  Other writes through `.data` or
    NumPy may change none of these, so comparisons of state ask for `exact` facts, which are read
    again.
    """

    def __init__(self) -> None:
        self._known: dict[int, _Known] = {}
        self._count = 0

    def identity(self, thing: object) -> int:
        """The number of an object; 0 if Python cannot refer to it weakly."""
        known = self._of(thing)
        return 0 if known is None else known.number

    def tensor(
        self, tensor: torch.Tensor, exact: bool = False, read: bool = True
    ) -> tuple[TensorFacts, int]:
        """The facts on a tensor, and its number, 0 if Python cannot refer to it weakly.

        With `exact`, cached facts are not used.  Without `read`, the facts are those that need no
        look at the content; the digest is 0 then.
        """
        known = self._of(tensor)
        if known is None or not read:
            return _facts(tensor, read), 0 if known is None else known.number
        key, facts = key_of(tensor), known.facts
        if exact or facts is None or not self._holds(known, key, tensor):
            facts = _facts(tensor)
            known.key, known.sample = key, _sample(tensor, facts)
        elif facts.requires_grad != tensor.requires_grad:
            facts = replace(facts, requires_grad=tensor.requires_grad)
        known.facts = facts
        return facts, known.number

    def _holds(self, known: _Known, key: Key | None, tensor: torch.Tensor) -> bool:
        """Whether nothing shows that the tensor was written to since its facts were read."""
        if key is None or known.key != key or known.sample is None or known.unsettled:
            return False
        return known.sample == _sample(tensor)

    def unsettle(self, thing: object) -> None:
        """Never use cached facts of this tensor, or of the tensors in a list, again.

        Data from another rank may be written at any later time, and this changes neither the
        version nor the address of the tensor.
        """
        for each in thing if isinstance(thing, list | tuple) else (thing,):
            if isinstance(each, torch.Tensor):
                known = self._of(each)
                if known is not None:
                    known.unsettled = True

    def _of(self, thing: object) -> _Known | None:
        address = id(thing)
        known = self._known.get(address)
        if known is not None and known() is thing:
            return known
        try:
            known = _Known(thing, self._forget)
        except TypeError:
            return None
        self._count += 1
        known.number, known.address, known.unsettled = self._count, address, False
        known.key, known.sample, known.facts = None, None, None
        self._known[address] = known
        return known

    def _forget(self, known: weakref.ref[object]) -> None:
        assert isinstance(known, _Known)
        if self._known.get(known.address) is known:
            del self._known[known.address]


def key_of(tensor: torch.Tensor) -> Key | None:
    """The version and the address of a tensor, which are compared to notice writes to it.

    None if the tensor has no version or no address, as in inference mode.
    """
    plain = type(tensor) is torch.Tensor or type(tensor) is torch.nn.Parameter
    local = tensor if plain else _local(tensor)
    try:
        return None if local is None else (version_of(local), local.data_ptr())
    except _UNREADABLE:
        return None


def _sample(tensor: torch.Tensor, facts: TensorFacts | None = None) -> int | None:
    """A hash of up to `SAMPLED` evenly spread elements of this rank's part of a parameter.

    0 for a tensor that is no parameter; None if the elements cannot be read without a copy of the
    whole parameter, or at all.  `facts` are facts that were just read, of which the digest is the
    hash of a small parameter.
    """
    if type(tensor) is torch.Tensor or not isinstance(tensor, torch.nn.Parameter):
        return 0
    local = _local(tensor)
    try:
        if local is None or not local.is_contiguous() or not local.data_ptr():
            return None
        if facts is not None and facts.digest and local.numel() <= SAMPLED:
            return facts.digest
        return _undisturbed(_hash_of_sample, local)
    except _UNREADABLE:
        return None


def _hash_of_sample(local: torch.Tensor) -> int:
    flat = local.detach().view(-1)
    step = -(-flat.numel() // SAMPLED)
    return _hash((flat if step <= 1 else flat[::step].contiguous()).cpu())


def _hash(plain: torch.Tensor) -> int:
    """The hash of the bytes of a contiguous tensor on the CPU; never 0."""
    # Not through NumPy: torch never resizes a storage again that NumPy has had, and FSDP must.
    memory = (ctypes.c_ubyte * plain.nbytes).from_address(plain.data_ptr())
    return xxhash.xxh3_64_intdigest(memory) or 1


def _local(tensor: Any) -> Any:
    """The tensor that holds the content on this rank; None for fake tensors and the like."""
    while type(tensor) is not torch.Tensor and type(tensor) is not torch.nn.Parameter:
        if not has_own_code(tensor):
            break
        tensor = local_part(tensor)
        if tensor is None:
            break
    return tensor


def _flags(attributes: Mapping[str, Any]) -> set[str]:
    """The attributes that are True, and "expert" for a parameter that is not all-reduced.

    Megatron-LM and DeepSpeed mark the parameters of experts by `allreduce = False`.
    """
    found = {name for name, value in attributes.items() if value is True}
    return found | {"expert"} if attributes.get("allreduce") is False else found


def _facts(tensor: torch.Tensor, read: bool = True) -> TensorFacts:
    """The facts on a tensor; the digest is 0 if its content cannot be read, or without `read`."""
    attributes = vars(tensor)
    flags = tuple(sorted(_flags(attributes))) if attributes else ()
    local, content, is_view = _local(tensor), None, False
    try:
        is_view = is_view_of_another(tensor)
        if read and local is not None and not local.is_meta:
            content = _undisturbed(_content, local)
    except _UNREADABLE:
        pass
    digest, norm, zero, finite = content or (0, None, False, True)
    return TensorFacts(
        digest,
        tuple(map(int, (tensor if local is None else local).shape)),
        dtype_name(tensor.dtype),
        device_name(tensor.device),
        norm,
        zero,
        finite,
        tensor.requires_grad,
        is_view,
        flags,
    )


def _content(local: Any) -> tuple[int, float | None, bool, bool] | None:
    """The hash of a tensor's content, its norm, and whether all elements are zero, and finite.

    `local` is the rank's part of the tensor.  The norm is None for integers, or if it is not
    finite.  Returns None if the content cannot be read.
    """
    if local.layout is not torch.strided or local.is_quantized:
        return None
    plain = local.detach()
    if not plain.is_cpu:
        plain = plain.cpu()
    if plain.is_conj() or plain.is_neg():
        plain = plain.resolve_conj().resolve_neg()
    if not plain.is_contiguous():
        plain = plain.contiguous()
    count = plain.numel()
    if count and not plain.data_ptr():
        return None  # FSDP frees the memory of a parameter between its uses
    digest = _hash(plain)
    if not count:
        return digest, 0.0 if plain.is_floating_point() else None, False, True
    if not (plain.is_floating_point() or plain.is_complex()):
        return digest, None, not bool(plain.any()), True
    return (digest, *_size(plain))


def _size(plain: torch.Tensor) -> tuple[float | None, bool, bool]:
    """The norm of a tensor (None if not finite), and whether all elements are zero, and finite.

    One pass is enough, unless squares of the elements overflow or underflow.
    """
    if plain.element_size() == 1:  # FP8, for which torch has few operators
        plain = plain.float()
    wide = torch.float32 if plain.dtype in _HALF else None
    norm = float(torch.linalg.vector_norm(plain, dtype=wide))
    if not math.isfinite(norm):
        finite = bool(torch.isfinite(plain).all())
        if not finite:
            return None, False, False
        norm = float(torch.linalg.vector_norm(plain.double()))
    return norm, norm == 0.0 and not bool(plain.any()), True


def _undisturbed(read: Callable[[Any], Result], tensor: Any) -> Result:
    """`read(tensor)`; the program's dispatch modes do not see the operators that it calls."""
    if not modes_active():
        return read(tensor)
    with without_modes():
        return read(tensor)
