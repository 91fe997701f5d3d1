"""The context of a script, which the script gets by calling `context()`."""

from __future__ import annotations

import torch

from pytest_trainsafe.core.rank import current_rank
from pytest_trainsafe.core.rank.state import keep_per_rank
from pytest_trainsafe.core.rungs.table import RECIPE
from pytest_trainsafe.record.context import Context
from pytest_trainsafe.record.unrecorded import Unrecorded
from pytest_trainsafe.trace.run_spec import RunSpec

_current: Context | None = None
_alone: Context | None = None
keep_per_rank(__name__, "_current", "_alone")


def context() -> Context:
    """The context of the Run that this script is part of.

    Without a Run, returns a context that records nothing, so that the script also runs alone:
    in float32, on a GPU if there is one, with all ranks on the dp axis.
    """
    global _alone
    if _current is not None:
        return _current
    if _alone is None:
        _alone = _unrecorded()
    return _alone


def set_context(ctx: Context | None) -> None:
    """Sets the context that `context()` returns.  Called before and after a script's Run."""
    global _current
    _current = ctx


def _unrecorded() -> Context:
    me = current_rank()
    spec = RunSpec(program="", axes=(("dp", me.world_size),), dtype=RECIPE)
    return Context(spec, Unrecorded(), me, "cuda" if torch.cuda.is_available() else "cpu")
