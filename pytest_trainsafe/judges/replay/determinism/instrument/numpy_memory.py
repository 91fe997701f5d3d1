"""Fills the small arrays that the program makes with `numpy.empty`.

Called by the recorder in Runs whose environment makes glibc fill memory. NumPy keeps freed blocks
of less than 1024 bytes and hands them out again unfilled, without calling glibc. Their contents
depend on what the process did before, which is often the same in every Run.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from pytest_trainsafe.core.code_files import owner_of
from pytest_trainsafe.core.rank.state import keep_per_rank, replacing

#: NumPy keeps blocks of fewer bytes than this.
_KEPT = 1024

_NAMES = ("empty", "empty_like")

#: The setting by which glibc fills memory.
_PERTURB = re.compile(r"glibc\.malloc\.perturb=(0[xX][0-9a-fA-F]+|\d+)")

#: The byte to fill with; None outside of the context.
_byte: int | None = None
keep_per_rank(__name__, "_byte")


def _filling(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        made = original(*args, **kwargs)
        if (
            _byte is not None
            and type(made) is np.ndarray
            and made.nbytes < _KEPT
            and not made.dtype.hasobject
            and owner_of(sys._getframe(1).f_code.co_filename) == "project"
        ):
            # A new array is contiguous in some order of its axes, so this is all of its memory.
            ctypes.memset(made.ctypes.data, _byte, made.nbytes)
        return made

    return call


#: Made once and never freed: torch.compile recognises NumPy's functions by their addresses.
_WRAPPERS = [(name, getattr(np, name), _filling(getattr(np, name))) for name in _NAMES]


@contextlib.contextmanager
def filled(environ: Sequence[tuple[str, str]]) -> Iterator[None]:
    """Fills new arrays in this context with the byte that `environ` has glibc fill memory with.

    Does nothing if `environ` sets no such byte.
    """
    global _byte
    byte = _byte_of(environ)
    if byte is None:
        yield
        return
    _byte = byte
    for name, _, wrapper in _WRAPPERS:
        replacing(np, name)
        setattr(np, name, wrapper)
    try:
        yield
    finally:
        _byte = None
        for name, original, _ in _WRAPPERS:
            setattr(np, name, original)


def _byte_of(environ: Sequence[tuple[str, str]]) -> int | None:
    settings = dict(environ).get("GLIBC_TUNABLES", "")
    found = _PERTURB.findall(settings)
    # glibc fills new memory with the complement of the byte that it fills freed memory with.
    return ~int(found[-1], 0) & 0xFF if found else None
