"""Runs a function as another user of this machine, which only root can do."""

from __future__ import annotations

import ctypes
import os
import warnings
from collections.abc import Callable

import pytest

NOBODY = 65534

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user")


def as_nobody(act: Callable[[], str], meanwhile: Callable[[], None] = lambda: None) -> str:
    """What `act` returns, or raises, in a process of another user; `meanwhile` is called here."""
    "".encode("idna")  # sockets need it, and another user may not read our Python's files
    read, write = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # this process has threads
        child = os.fork()
    if not child:
        try:
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)  # PR_SET_DUMPABLE, as after an exec
            os.write(write, act().encode())
        except BaseException as error:
            os.write(write, f"{type(error).__name__}: {error}".encode())
        finally:
            os._exit(0)
    os.close(write)
    meanwhile()
    with open(read, errors="replace") as pipe:
        answer = pipe.read()
    os.waitpid(child, 0)
    return answer
