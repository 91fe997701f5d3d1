"""Pipeline schedules: the order in which a rank runs forwards and backwards of micro-batches.

A schedule is plain data, so it can be checked without running it.  `pipeline.py` runs one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

OURS = ("1f1b", "gpipe")

#: The schedules that `torch_pipeline.py` takes from torch.distributed.pipelining: their names
#: there for one chunk on each rank, and for several ("": torch has none).
TORCHS = {
    "torch-1f1b": ("1F1B", "Interleaved1F1B"),
    "torch-gpipe": ("GPipe", ""),
    "torch-zero-bubble": ("InterleavedZeroBubble", "InterleavedZeroBubble"),
}


@dataclass(frozen=True, slots=True)
class Action:
    """One forward or backward of one of the rank's chunks for one of its micro-batches.

    `chunk` and `microbatch` are numbers on this rank, counted from 0.
    """

    kind: Literal["forward", "backward"]
    chunk: int
    microbatch: int


def require_known(schedule: str) -> None:
    """Raises ValueError, which lists the known names, if there is no schedule of this name."""
    known = (*OURS, *TORCHS)
    if schedule not in known:
        raise ValueError(f"there is no schedule {schedule!r}; choose one of {', '.join(known)}")


def actions(schedule: str, rank: int, pp: int, vpp: int, microbatches: int) -> list[Action]:
    """The actions of rank `rank` of `pp`, which has `vpp` chunks, in order.

    "gpipe" runs all forwards, then all backwards (Huang et al. 2019).  "1f1b" runs each backward as
    early as it can, so that few micro-batches wait (Narayanan et al. 2021, section 2.2).  With
    several chunks "1f1b" is interleaved; then it raises ValueError unless `microbatches` is a
    multiple of `pp`.
    """
    assert schedule in OURS, schedule
    if schedule == "gpipe":
        forwards = [(chunk, index) for chunk in range(vpp) for index in range(microbatches)]
        backwards = [(vpp - 1 - chunk, index) for chunk, index in forwards]
        ahead = len(forwards)
    else:
        if vpp > 1 and microbatches % pp:
            raise ValueError(
                f"{microbatches} micro-batches per rank are not a multiple of pp={pp}, which the "
                "interleaved schedule needs; use another number, or schedule='gpipe'"
            )
        forwards = list(_interleaved(pp, vpp, microbatches))
        backwards = [(vpp - 1 - chunk, index) for chunk, index in forwards]
        waiting = pp - 1 - rank
        ahead = waiting if vpp == 1 else 2 * waiting + (vpp - 1) * pp
    return list(_alternating(forwards, backwards, min(ahead, len(forwards))))


def _interleaved(pp: int, vpp: int, microbatches: int) -> Iterator[tuple[int, int]]:
    """Yields (chunk, micro-batch): all chunks for `pp` micro-batches, then for the next `pp`.

    In this order, each micro-batch arrives when the next chunk needs it.
    """
    for first in range(0, microbatches, pp):
        for chunk in range(vpp):
            for index in range(first, min(first + pp, microbatches)):
                yield chunk, index


def _alternating(
    forwards: list[tuple[int, int]], backwards: list[tuple[int, int]], ahead: int
) -> Iterator[Action]:
    """Yields `ahead` forwards, then one forward and one backward in turn, then the rest.

    The rest are backwards.
    """
    for chunk, index in forwards[:ahead]:
        yield Action("forward", chunk, index)
    for place, (chunk, index) in enumerate(backwards):
        if ahead + place < len(forwards):
            yield Action("forward", *forwards[ahead + place])
        yield Action("backward", chunk, index)
