"""The rank that code runs as: its number, and the size of its group.

`Rank.of` is the only place that reads torchrun's variables.  A launcher calls `become` before a
rank's program; everything else asks `current_rank`, or is given a Rank.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_trainsafe.core.rank.state import keep_per_rank

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class Rank:
    """One rank of a group.

    `local_rank` is its number among the `local_world_size` ranks of its machine.
    """

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    local_world_size: int = 1

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> Rank:
        """The rank of a process with torchrun's variables; rank 0 of 1 without them."""
        return cls(
            rank=int(environ.get("RANK", "0")),
            world_size=int(environ.get("WORLD_SIZE", "1")),
            local_rank=int(environ.get("LOCAL_RANK", "0")),
            local_world_size=int(environ.get("LOCAL_WORLD_SIZE", "1")),
        )

    def device(self, kind: str) -> torch.device:
        """The device of this rank: "cuda" is the GPU with the number `local_rank`."""
        import torch  # slow

        return torch.device("cuda", self.local_rank) if kind == "cuda" else torch.device(kind)


#: The current rank; None in a process that no launcher started.
_current: Rank | None = None
keep_per_rank(__name__, "_current")


def current_rank() -> Rank:
    """The rank that this code runs as; in a process that no launcher started, by its variables."""
    return Rank.of(os.environ) if _current is None else _current


def is_launched() -> bool:
    """Whether a launcher started this rank: ours, or another that sets torchrun's variables."""
    return _current is not None or "RANK" in os.environ


def become(rank: Rank) -> None:
    """Makes `rank` the current one.  A launcher calls it before the program of a rank."""
    global _current
    _current = rank
