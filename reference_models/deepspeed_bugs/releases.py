"""Lets a rank train with an old release of DeepSpeed beside the torch of today.

A release lies in a folder of its own, as `pip install --no-deps --target FOLDER` leaves it.
Called by the corpus' programs, in ranks that have not imported DeepSpeed yet.  What is given to
a release here is only what it would not start without: modules that its CPU backend of the time
wanted to see, and names that torch has dropped.  None of it computes anything.
"""

from __future__ import annotations

import importlib.machinery
import logging
import os
import sys
import types
from pathlib import Path
from typing import Any

from pytest_trainsafe.fixtures.deepspeed.engine import gather_without_history

#: Modules of Intel's that releases before 0.14.1 import to believe in CPUs.
_INTELS = ("intel_extension_for_pytorch", "oneccl_bindings_for_pytorch")


def start_release(folder: str) -> Any:
    """The deepspeed of this folder, imported and communicating over plain gloo on CPUs.

    Raises FileNotFoundError where the folder has none, and RuntimeError where another deepspeed
    has been imported before.
    """
    place = Path(folder)
    if not (place / "deepspeed").is_dir():
        raise FileNotFoundError(
            f"no DeepSpeed in {place}; put one there: "
            f"DS_BUILD_OPS=0 pip install --no-deps --target {place} deepspeed==RELEASE"
        )
    if "deepspeed" in sys.modules:
        raise RuntimeError(f"a deepspeed was imported before that of {place}")
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
        backend.build_shm_op = lambda: None  # a minute of g++, for what gloo does
    gather_without_history()
    deepspeed.init_distributed(dist_backend="gloo", auto_mpi_discovery=False, verbose=False)
    return deepspeed


def _version(place: Path) -> tuple[int, ...]:
    for found in place.glob("deepspeed-*.dist-info"):
        release = found.name.removeprefix("deepspeed-").removesuffix(".dist-info")
        return tuple(int(part) for part in release.split(".")[:3])
    raise FileNotFoundError(f"no deepspeed-*.dist-info in {place}: install it there by pip")


def _early() -> None:
    """What releases before 0.14.1 import and this machine need not have."""
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
