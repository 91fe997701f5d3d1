"""What a rung that encloses a program knows about the rank that runs it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import msgspec


@dataclass(frozen=True)
class RankRun:
    """One rank of a Run, for the rung that encloses its program.

    `seed` is the Run's, and `sample` numbers Runs that draw other random numbers of the rung's own.
    `trace` is the folder into which the Run records, and `followed` that of the Run whose decisions
    this one takes, None for none.  `add` adds an event to the rank's trace.
    """

    seed: int
    rank: int
    trace: Path
    add: Callable[[msgspec.Struct], None]
    sample: int = 0
    followed: Path | None = None
