"""`deterministic_runtime`: a region of a program in which torch computes deterministically.

Called by programs and tests. The settings are those of torch's notes on reproducibility.
"""

from __future__ import annotations

import contextlib
import os
import random
from collections.abc import Iterator

import numpy as np
import torch
import torch.utils.deterministic as memory

from pytest_trainsafe.core.usage import shown
from pytest_trainsafe.errors import ArgumentTypeError

#: With either value, cuBLAS uses the same workspace for all its calls on a stream.
_WORKSPACE, _WORKSPACES = "CUBLAS_WORKSPACE_CONFIG", (":4096:8", ":16:8")


@contextlib.contextmanager
def deterministic_runtime(seed: int = 0, *, warn_only: bool = False) -> Iterator[None]:
    """Seeds all global generators and selects deterministic algorithms; restores both at the end.

    Seeds Python's `random`, NumPy's global generator and torch's generators on all devices. The
    workers of a DataLoader are seeded from torch's generator, so their seeds follow from `seed`
    too. Operators without a deterministic algorithm raise RuntimeError, or only warn if
    `warn_only` is True. Uninitialised memory is filled, cuDNN chooses deterministic algorithms
    without benchmarks, and cuBLAS has a fixed workspace. The workspace must be set before the
    process first uses CUDA.

    Neither the clock nor environment variables are controlled, such as PYTHONHASHSEED, which
    Python reads when a process starts. Raises ArgumentTypeError for a seed that is not an
    integer, and ArgumentError for a seed below 0 or above 2**63 - 1.
    """
    _require_seed(seed)
    with contextlib.ExitStack() as undo:
        _keep_generators(undo)
        random.seed(seed)
        np.random.seed(seed % 2**32)
        torch.manual_seed(seed)
        _keep_algorithms(undo)
        torch.use_deterministic_algorithms(True, warn_only=warn_only)
        memory.fill_uninitialized_memory = True  # type: ignore[attr-defined]
        torch.backends.cudnn.deterministic = True
        torch.backends.cudnn.benchmark = False
        undo.callback(_set_variable, _WORKSPACE, os.environ.get(_WORKSPACE))
        if os.environ.get(_WORKSPACE) not in _WORKSPACES:
            os.environ[_WORKSPACE] = _WORKSPACES[0]
        yield


def _require_seed(seed: object) -> None:
    if type(seed) is not int:
        raise ArgumentTypeError(
            f"deterministic_runtime was given seed={shown(seed)}; a seed must be an integer, such "
            "as 0"
        )
    if not 0 <= seed < 2**63:
        from pytest_trainsafe.errors import ArgumentError

        raise ArgumentError(
            f"deterministic_runtime was given seed={seed}; a seed must be from 0 to 2**63 - 1"
        )


def _keep_generators(undo: contextlib.ExitStack) -> None:
    """Makes `undo` restore the present states of the global generators."""
    undo.callback(random.setstate, random.getstate())
    undo.callback(np.random.set_state, np.random.get_state())
    undo.callback(torch.set_rng_state, torch.get_rng_state())
    if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        undo.callback(torch.cuda.set_rng_state_all, torch.cuda.get_rng_state_all())


def _keep_algorithms(undo: contextlib.ExitStack) -> None:
    """Makes `undo` restore torch's present settings."""
    undo.callback(
        torch.use_deterministic_algorithms,
        torch.are_deterministic_algorithms_enabled(),
        warn_only=torch.is_deterministic_algorithms_warn_only_enabled(),
    )
    cudnn = torch.backends.cudnn
    for owner, name in (
        (memory, "fill_uninitialized_memory"),
        (cudnn, "deterministic"),
        (cudnn, "benchmark"),
    ):
        undo.callback(setattr, owner, name, getattr(owner, name))


def _set_variable(name: str, value: str | None) -> None:
    if value is None:
        os.environ.pop(name, None)
    else:
        os.environ[name] = value
