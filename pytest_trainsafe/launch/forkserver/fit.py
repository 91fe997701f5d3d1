"""Checks whether a forked rank would behave as a freshly started one, and if not, why.

A preloaded process has already read parts of its environment and resolved its modules.  Called for
each group before its ranks are forked; for any reason found, the launcher starts fresh processes.
"""

from __future__ import annotations

import filecmp
import os
import sys
from collections.abc import Iterable, Mapping

#: Prefixes of variables that are read when Python, torch or their libraries are loaded,
#: or when DeepSpeed is imported (DS_ACCELERATOR).
_READ_AT_START = (
    *("PYTHON", "LD_", "MALLOC_", "GLIBC_", "LC_", "LANG"),
    *("OMP_", "KMP_", "GOMP_", "MKL_", "OPENBLAS_", "BLIS_"),
    *("TORCH", "PYTORCH_", "ATEN_", "CUBLAS_", "DS_"),
)
#: Exceptions: variables that `forked_rank` makes torch read again.
_READ_AGAIN = {
    *("OMP_NUM_THREADS", "TORCH_DISTRIBUTED_DEBUG", "TORCH_LOGS", "TORCH_LOGS_OUT"),
    *("TORCH_LOGS_FORMAT", "TORCH_TRACE"),
    # The task has its own search path; `_hiding` finds modules that this variable would shadow.
    "PYTHONPATH",
}
#: Exceptions: prefixes of variables that torch reads only when it uses them.
_READ_LATE = ("TORCH_NCCL_", "TORCH_FR_", "TORCHELASTIC_")


def misfits(
    base: Mapping[str, str], environ: Mapping[str, str], sys_path: Iterable[str]
) -> list[str]:
    """Reasons why a process started with the environment `base` cannot stand in for a fresh one.

    The fresh one would have the environment `environ`.  `sys_path` is the module search path of the
    ranks: a folder in it may contain a module with the name of a preloaded one.  The list is empty
    if the process can be used.
    """
    reasons = [
        f"{name} has another value than in the fork server, and is read only when a process starts"
        for name in changed_at_start(base, environ)
    ]
    searched = [*filter(None, environ.get("PYTHONPATH", "").split(os.pathsep)), *sys_path]
    return reasons + [
        f"{file} has the name of a module that the fork server has already imported"
        for file in _hiding(searched)
    ]


def changed_at_start(base: Mapping[str, str], environ: Mapping[str, str]) -> list[str]:
    """The variables that differ, of those that are read only when a process starts; sorted."""
    names = sorted(name for name in {*base, *environ} if base.get(name) != environ.get(name))
    return [name for name in names if _at_start(name)]


def _at_start(name: str) -> bool:
    if name in _READ_AGAIN or name.startswith(_READ_LATE):
        return False
    return name.startswith(_READ_AT_START)


def _hiding(sys_path: Iterable[str]) -> list[str]:
    """Paths of modules in `sys_path` that have the name of a preloaded module but differ from it.

    Skips folders that the preload searched too.
    """
    known = {os.path.realpath(entry) for entry in sys.path}
    found: dict[str, None] = {}
    for entry in sys_path:
        if os.path.realpath(entry) in known:
            continue
        try:
            files = os.listdir(entry)
        except OSError:  # not a folder: a zip file, or missing
            continue
        for file in files:
            path = os.path.join(entry, file)
            name = file.partition(".")[0]
            if name in sys.modules and _is_module(path) and not _is_it(name, path):
                found[path] = None
    return list(found)


def _is_module(path: str) -> bool:
    if os.path.isdir(path):
        return os.path.exists(os.path.join(path, "__init__.py"))
    return path.endswith((".py", ".so"))


def _is_it(name: str, path: str) -> bool:
    """Whether a path is the preloaded module itself, or a copy of its only file.

    A copy must be accepted because, since torch 2.8 at the latest, every process writes the module
    _remote_module_non_scriptable into a temporary folder and puts that folder on the search path.
    """
    file = getattr(sys.modules[name], "__file__", None) or ""
    here = os.path.join(path, "__init__.py") if os.path.isdir(path) else path
    if not file or os.path.realpath(file) == os.path.realpath(here):
        return bool(file)
    try:
        return here.endswith(".py") and here == path and filecmp.cmp(file, here, shallow=False)
    except OSError:
        return False
