"""What an axis made a rank do that no tensor of its trace shows: recompute, compile.

Called when a program has returned.  `compare/in_effect.py` reads the notes.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

from pytest_trainsafe.record.clock import Clock


def consequences(clock: Clock, compiled_before: int) -> Iterator[str]:
    """The axes whose consequences this rank had: "recompute", "compile".

    `compiled_before` is what `compiled_graphs` gave before the program ran.
    """
    if clock.recomputed:
        yield "recompute"
    if compiled_graphs() > compiled_before:
        yield "compile"


def compiled_graphs() -> int:
    """How many graphs torch.compile has captured in this process."""
    utils = sys.modules.get("torch._dynamo.utils")
    if utils is None:
        return 0
    return int(utils.counters["stats"].get("unique_graphs", 0))
