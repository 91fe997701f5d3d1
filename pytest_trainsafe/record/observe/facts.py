"""Reads facts on tensors: hashes of their content, norms and flags.

Reading them does not disturb the program.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import math
import weakref
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
import xxhash

from pytest_trainsafe.trace.observed.events import TensorFacts

#: What torch raises for tensors without memory of their own: fake, functional, nested and such.
_UNREADABLE = (RuntimeError, NotImplementedError, TypeError, AttributeError)

#: The version and the address of a tensor: unchanged while nobody wrote through this tensor.
Key = tuple[int, int]

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

    For a tensor, `facts` are the facts that were read last, and `stamp` is what `_stamp` returned
    at that time.
    """

    __slots__ = ("address", "facts", "number", "stamp", "unsettled")

    number: int
    address: int
    stamp: tuple[Key, int] | None
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

    def tensor(self, tensor: torch.Tensor, exact: bool = False) -> tuple[TensorFacts, int]:
        """The facts on a tensor, and its number, 0 if Python cannot refer to it weakly.

        With `exact`, cached facts are not used.
        """
        known = self._of(tensor)
        if known is None:
            return _facts(tensor), 0
        stamp, facts = _stamp(tensor), known.facts
        if exact or facts is None or stamp is None or known.stamp != stamp or known.unsettled:
            facts = _facts(tensor)
        elif facts.requires_grad != tensor.requires_grad:
            facts = replace(facts, requires_grad=tensor.requires_grad)
        known.facts, known.stamp = facts, stamp
        return facts, known.number

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
        known.stamp, known.facts = None, None
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
        return None if local is None else (local._version, local.data_ptr())
    except _UNREADABLE:
        return None


def _stamp(tensor: torch.Tensor) -> tuple[Key, int] | None:
    """A tensor's version and address, and a sample of its elements; None if one is unknown.

    A new stamp shows that the tensor was written to.
    """
    key, sample = key_of(tensor), _sample(tensor)
    return None if key is None or sample is None else (key, sample)


def _sample(tensor: torch.Tensor) -> int | None:
    """A hash of up to `SAMPLED` evenly spread elements of this rank's part of a parameter.

    0 for a tensor that is no parameter; None if the elements cannot be read without a copy of the
    whole parameter, or at all.
    """
    if type(tensor) is torch.Tensor or not isinstance(tensor, torch.nn.Parameter):
        return 0
    local = _local(tensor)
    try:
        if local is None or not local.is_contiguous() or not local.data_ptr():
            return None
        with _undisturbed():
            flat = local.detach().view(-1)
            step = -(-flat.numel() // SAMPLED)
            return _hash((flat if step <= 1 else flat[::step].contiguous()).cpu())
    except _UNREADABLE:
        return None


def _hash(plain: torch.Tensor) -> int:
    """The hash of the bytes of a contiguous tensor on the CPU."""
    # Not through NumPy: torch never resizes a storage again that NumPy has had, and FSDP must.
    memory = (ctypes.c_ubyte * plain.nbytes).from_address(plain.data_ptr())
    return xxhash.xxh3_64_intdigest(memory)


def _local(tensor: Any) -> Any:
    """The tensor that holds the content on this rank; None for fake tensors and the like."""
    while type(tensor) is not torch.Tensor and type(tensor) is not torch.nn.Parameter:
        if not torch._C._dispatch_keys(tensor).has(torch._C.DispatchKey.Python):
            break
        tensor = getattr(tensor, "_local_tensor", None)
        if tensor is None:
            break
    return tensor


def _flags(attributes: Mapping[str, Any]) -> set[str]:
    """The attributes that are True, and "expert" for a parameter that is not all-reduced.

    Megatron-LM and DeepSpeed mark the parameters of experts by `allreduce = False`.
    """
    found = {name for name, value in attributes.items() if value is True}
    return found | {"expert"} if attributes.get("allreduce") is False else found


def _facts(tensor: torch.Tensor) -> TensorFacts:
    """Reads the facts on a tensor; the digest is 0 if its content cannot be read."""
    described: dict[str, Any] = {
        "requires_grad": tensor.requires_grad,
        "flags": tuple(sorted(_flags(vars(tensor)))),
    }
    local = _local(tensor)
    try:
        described["is_view"] = tensor._is_view()
        content = None if local is None else _content(local)
    except _UNREADABLE:
        content = None
    digest, norm, zero, finite = content or (0, None, False, True)
    shape = tuple(map(int, (tensor if local is None else local).shape))
    return TensorFacts(
        digest,
        shape,
        dtype_name(tensor.dtype),
        device_name(tensor.device),
        norm,
        zero,
        finite,
        **described,
    )


def _content(local: Any) -> tuple[int, float | None, bool, bool] | None:
    """The hash of a tensor's content, its norm, and whether all elements are zero, and finite.

    `local` is the rank's part of the tensor.  The norm is None for integers, or if it is not
    finite.  Returns None if the content cannot be read.
    """
    if local.is_meta or local.layout is not torch.strided or local.is_quantized:
        return None
    with _undisturbed():
        plain = local.detach()
        if not plain.is_cpu:
            plain = plain.cpu()
        if plain.is_conj() or plain.is_neg():
            plain = plain.resolve_conj().resolve_neg()
        if not plain.is_contiguous():
            plain = plain.contiguous()
        if plain.numel() and not plain.data_ptr():
            return None  # FSDP frees the memory of a parameter between its uses
        digest = _hash(plain) or 1
        if not plain.numel():
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


@contextlib.contextmanager
def _undisturbed() -> Any:
    """Disable the program's dispatch modes while this package's operators read a tensor."""
    if not torch._C._len_torch_dispatch_stack():
        yield
        return
    from torch.utils._python_dispatch import _disable_current_modes

    with _disable_current_modes():
        yield
