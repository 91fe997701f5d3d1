"""Lets a rank train with an old release of DeepSpeed and the installed torch.

A release is in a folder of its own, as `pip install --no-deps --target FOLDER` leaves it.
Called by the catalogue's programs, in ranks that have not imported DeepSpeed yet.  The changes that
are made here are only those without which an old release cannot train on CPUs: empty modules that
its CPU backend imports, names that torch and numpy no longer have, and all-gathers that work over
gloo.  None of them changes a result.
"""

from __future__ import annotations

import importlib.machinery
import logging
import os
import sys
import types
from pathlib import Path
from typing import Any

from pytest_trainsafe.fixtures.deepspeed.gathers import prepare_gathers

#: Intel's modules, which releases before 0.14.1 import to find out whether they can use the CPU.
_INTELS = ("intel_extension_for_pytorch", "oneccl_bindings_for_pytorch")


def start_release(folder: str) -> Any:
    """Imports the DeepSpeed in this folder and starts its communication over gloo on CPUs.

    Returns the module.  Raises FileNotFoundError if the folder has no DeepSpeed, and RuntimeError
    if a DeepSpeed has been imported before.
    """
    place = Path(folder)
    if not (place / "deepspeed").is_dir():
        raise FileNotFoundError(
            f"there is no DeepSpeed in {place}; install one there: "
            f"DS_BUILD_OPS=0 pip install --no-deps --target {place} deepspeed==RELEASE"
        )
    if "deepspeed" in sys.modules:
        raise RuntimeError(
            f"the DeepSpeed in {place} cannot be imported, because this process has already "
            "imported a DeepSpeed; call start_release in a new process, before any import of "
            "deepspeed"
        )
    os.environ["DS_ACCELERATOR"] = "cpu"
    sys.path.insert(0, str(place))
    early = _version(place) < (0, 14, 1)
    if early:
        _early()
    import deepspeed

    if early:
        from deepspeed.accelerator import get_accelerator

        get_accelerator()._communication_backend_name = "gloo"
    backend: Any = sys.modules["deepspeed.comm.torch"]
    if hasattr(backend, "build_shm_op"):
        backend.build_shm_op = lambda: None  # g++ takes a minute, and gloo does the same
    prepare_gathers(deepspeed)
    deepspeed.init_distributed(dist_backend="gloo", auto_mpi_discovery=False, verbose=False)
    return deepspeed


def _version(place: Path) -> tuple[int, ...]:
    for found in place.glob("deepspeed-*.dist-info"):
        release = found.name.removeprefix("deepspeed-").removesuffix(".dist-info")
        return tuple(int(part) for part in release.split(".")[:3])
    raise FileNotFoundError(
        f"there is no deepspeed-*.dist-info in {place}; install the release there by pip"
    )


def _early() -> None:
    """Provides modules and names that releases before 0.14.1 import and this machine may lack."""
    for name in _INTELS:
        module = types.ModuleType(name)
        module.__spec__ = importlib.machinery.ModuleSpec(name, None)
        sys.modules.setdefault(name, module)
    import numpy
    import torch.distributed.elastic.agent.server.api as agent

    if not hasattr(numpy, "BUFSIZE"):
        numpy.BUFSIZE = 8192  # type: ignore[attr-defined]
    for name, value in (("log", logging.getLogger("elastic")), ("_get_socket_with_port", None)):
        if not hasattr(agent, name):
            setattr(agent, name, value)
