"""Varies string hashes and the contents of uninitialised memory between repetitions of a Run.

Both are set by environment variables when a process starts.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping

from pytest_trainsafe.core.usage import listing

_HASHES, _ALLOCATOR = "PYTHONHASHSEED", "GLIBC_TUNABLES"

#: Bytes that memory is filled with when it is freed; what is allocated has their complement.
#: As floats and as integers these patterns are far from 0 and from each other.
_BYTES = (0xA5, 0x3C, 0xC9, 0x5A, 0x96, 0x69)


def variables(hashes: int, memory: int, environ: Mapping[str, str] | None = None) -> Environ:
    """The environment variables that set the string hash seed `hashes` and a memory pattern.

    The process fills memory that it allocates with pattern number `memory`; equal numbers give
    equal contents. The allocator's settings in `environ`, by default this process's, stay in
    force.
    """
    environ = os.environ if environ is None else environ
    # Small pieces that a thread keeps for itself would be handed out unfilled.
    settings = f"glibc.malloc.perturb={_BYTES[memory % len(_BYTES)]}:glibc.malloc.tcache_count=0"
    given = environ.get(_ALLOCATOR, "")
    tunables = f"{given}:{settings}" if given else settings
    return ((_HASHES, str(hashes)), (_ALLOCATOR, tunables))


def not_varied(device: str) -> list[str]:
    """A sentence on what the variables cannot vary on this platform; [] if they vary everything."""
    missing = []
    if platform.libc_ver()[0] != "glibc":
        missing.append("memory that is read before it is written: only glibc fills it")
    elif "LD_PRELOAD" in os.environ:
        missing.append(
            "memory that is read before it is written, if a library of LD_PRELOAD allocates it"
        )
    if device == "cuda":
        missing.append("memory of the GPU that is read before it is written")
    return [f"not varied: {listing(missing)}"] if missing else []


Environ = tuple[tuple[str, str], ...]
