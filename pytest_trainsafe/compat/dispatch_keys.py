"""The keys by which torch's dispatcher chooses the kernel of an operator.

Needs of torch._C: `_dispatch_key_parse`, `_dispatch_has_backend_fallback`,
`_dispatch_keyset_full_after`, `_dispatch_tls_set_dispatch_key_included` and `..._excluded`,
`_dispatch_tls_is_dispatch_key_included` and `..._excluded`, `_IncludeDispatchKeyGuard`, and for
`has_own_code` and `without_mode_keys` also `_dispatch_keys` and `DispatchKey`.  The method
`_destroy` of a `torch.library.Library` is needed to remove kernels.  torch 2.10 to 2.14 have all of
these names.

Without those of `KEYS`, no kernel is called in place of torch's random operators.  Without those
of `SUBCLASSES`, a tensor subclass with code of its own is taken for a plain tensor.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch

from pytest_trainsafe.compat.private import Capability

KEYS = Capability("random operators of torch are not intercepted")
SUBCLASSES = Capability("tensor subclasses with operators of their own are not told from others")

_C = "torch._C"

#: The key of a name; raises RuntimeError for a name that is not a key's.
key_named: Callable[[str], Any] = KEYS.of(_C, "_dispatch_key_parse")

#: Whether a kernel for all operators is registered for a key.
has_fallback: Callable[[Any], bool] = KEYS.of(_C, "_dispatch_has_backend_fallback")

#: The keys that come after a key, for the call of an operator's next kernel.
keys_below: Callable[[Any], Any] = KEYS.of(_C, "_dispatch_keyset_full_after")

#: Sets whether this thread's operators consult a key, and whether they skip it.
include: Callable[[Any, bool], None] = KEYS.of(_C, "_dispatch_tls_set_dispatch_key_included")
exclude: Callable[[Any, bool], None] = KEYS.of(_C, "_dispatch_tls_set_dispatch_key_excluded")
is_included: Callable[[Any], bool] = KEYS.of(_C, "_dispatch_tls_is_dispatch_key_included")
is_excluded: Callable[[Any], bool] = KEYS.of(_C, "_dispatch_tls_is_dispatch_key_excluded")

#: A context in which this thread's operators consult a key.
including: Callable[[Any], AbstractContextManager[object]] = KEYS.of(_C, "_IncludeDispatchKeyGuard")

_remove: Callable[[Any], None] = KEYS.of("torch.library", "Library._destroy")

_keys_of = SUBCLASSES.of(_C, "_dispatch_keys")
_PYTHON = SUBCLASSES.of(_C, "DispatchKey.Python")
_SNAPSHOT = SUBCLASSES.of(_C, "DispatchKey.PythonTLSSnapshot")


def has_own_code(tensor: torch.Tensor) -> bool:
    """Whether a tensor is of a subclass that runs operators by its `__torch_dispatch__`."""
    if not SUBCLASSES.available:
        return False
    python: bool = _keys_of(tensor).has(_PYTHON)
    return python


def without_mode_keys(keys: Any) -> Any:
    """A set of keys without those of modes and subclasses; the set itself if these are unknown."""
    return keys.remove(_PYTHON).remove(_SNAPSHOT) if SUBCLASSES.available else keys


def remove_kernels(library: Any) -> None:
    """Removes the kernels that a `torch.library.Library` has registered."""
    _remove(library)
