"""Varies string hashes and the contents of uninitialised memory between repetitions of a Run.

Both are set by environment variables when a process starts.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping

from pytest_trainsafe.core.usage import listing

_HASHES, _ALLOCATOR = "PYTHONHASHSEED", "GLIBC_TUNABLES"

#: Bytes that freed memory is filled with; newly allocated memory is filled with their complement.
#: Read as floats or as integers, these patterns are far from 0 and from each other.
_BYTES = (0xA5, 0x3C, 0xC9, 0x5A, 0x96, 0x69)


def variables(hashes: int, memory: int, environ: Mapping[str, str] | None = None) -> Environ:
    """The environment variables that set the string hash seed `hashes` and a memory pattern.

    The process fills memory that it allocates with pattern number `memory`; equal numbers give
    equal contents. Settings of the allocator that `environ` already has are kept; it defaults
    to the environment of this process.
    """
    environ = os.environ if environ is None else environ
    # tcache_count=0: small blocks from a thread's own cache would be handed out unfilled.
    settings = f"glibc.malloc.perturb={_BYTES[memory % len(_BYTES)]}:glibc.malloc.tcache_count=0"
    given = environ.get(_ALLOCATOR, "")
    tunables = f"{given}:{settings}" if given else settings
    return ((_HASHES, str(hashes)), (_ALLOCATOR, tunables))


def not_varied(device: str) -> list[str]:
    """A sentence on what the variables cannot vary on this platform; [] if they vary everything."""
    missing = []
    if platform.libc_ver()[0] != "glibc":
        missing.append("memory that is read before it is written, because only glibc can fill it")
    elif "LD_PRELOAD" in os.environ:
        missing.append(
            "memory that is read before it is written, if a library in LD_PRELOAD allocates it"
        )
    if device == "cuda":
        missing.append("memory of the GPU that is read before it is written")
    return [f"not varied: {listing(missing)}"] if missing else []


Environ = tuple[tuple[str, str], ...]
