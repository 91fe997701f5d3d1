"""Refuses what ranks that share a process cannot keep apart, with a sentence that says so."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

from pytest_trainsafe.core.rank import state as rank_state
from pytest_trainsafe.errors import TrainsafeError

#: Frameworks whose modules keep the state of one rank in ways that were not tried with threads.
_FRAMEWORKS = ("deepspeed", "megatron", "accelerate", "torch_xla", "horovod")


class NotInThreadsError(TrainsafeError):
    """The program needs what the launcher `threads` does not have; the message says what."""


def refuse_frameworks() -> None:
    """Makes imports of frameworks raise NotInThreadsError in this process, for good."""
    for name in list(sys.modules):
        if name.partition(".")[0] in _FRAMEWORKS:
            del sys.modules[name]
    sys.meta_path.insert(0, _Refusing())


class _Refusing(MetaPathFinder):
    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """None; raises NotInThreadsError for a framework whose state no adapter names."""
        if name in _FRAMEWORKS and name not in _kept():
            raise NotInThreadsError(
                f"the program imports {name}, whose modules keep the state of one rank, but the "
                "launcher `threads` runs all ranks in one process; run with "
                "--trainsafe-launcher warm, or name these variables in an adapter's `per_rank`"
            )
        return None


def _kept() -> set[str]:
    """The packages of which some module's variables are kept for each rank."""
    return {each.module.partition(".")[0] for each in rank_state.modules.values()}


def refuse_backend(backend: str) -> None:
    """Raises NotInThreadsError for a backend in whose place the ranks' own cannot be put."""
    if backend not in ("undefined", "gloo", "cpu:gloo"):
        raise NotInThreadsError(
            f"the program creates a process group with the backend {backend!r}, but the launcher "
            "`threads` runs ranks in one process on the CPU, in place of gloo; leave the backend "
            "out, use 'gloo', or run with --trainsafe-launcher warm"
        )
