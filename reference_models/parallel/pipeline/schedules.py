"""Pipeline schedules: in which order a rank forwards and backwards its micro-batches.

Plain data, so that an order can be checked without running it.  `pipeline.py` follows one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

OURS = ("1f1b", "gpipe")

#: What `torch_pipeline.py` runs on schedules of torch.distributed.pipelining: their names there,
#: with one chunk a rank and with several ("": it has none).
TORCHS = {
    "torch-1f1b": ("1F1B", "Interleaved1F1B"),
    "torch-gpipe": ("GPipe", ""),
    "torch-zero-bubble": ("InterleavedZeroBubble", "InterleavedZeroBubble"),
}


@dataclass(frozen=True, slots=True)
class Action:
    """One forward or backward: of which of the rank's chunks, and of which micro-batch.

    Both count from 0 on this rank.
    """

    kind: Literal["forward", "backward"]
    chunk: int
    microbatch: int


def require_known(schedule: str) -> None:
    """Raise ValueError, listing the names, where there is no schedule of this name."""
    known = (*OURS, *TORCHS)
    if schedule not in known:
        raise ValueError(f"there is no schedule {schedule!r}; choose one of {', '.join(known)}")


def actions(schedule: str, rank: int, pp: int, vpp: int, microbatches: int) -> list[Action]:
    """What rank `rank` of `pp` does with its `vpp` chunks, in order.

    "gpipe" forwards everything, then backwards everything (Huang et al. 2019).  "1f1b" backwards
    as early as it can, so that few micro-batches wait (Narayanan et al. 2021, section 2.2); with
    several chunks it is interleaved, and takes a multiple of `pp` micro-batches.
    """
    assert schedule in OURS, schedule
    if schedule == "gpipe":
        forwards = [(chunk, index) for chunk in range(vpp) for index in range(microbatches)]
        backwards = [(vpp - 1 - chunk, index) for chunk, index in forwards]
        ahead = len(forwards)
    else:
        if vpp > 1 and microbatches % pp:
            raise ValueError(
                f"{microbatches} micro-batches per rank are not a multiple of pp={pp}, as the "
                "interleaved schedule needs; use another number, or schedule='gpipe'"
            )
        forwards = list(_interleaved(pp, vpp, microbatches))
        backwards = [(vpp - 1 - chunk, index) for chunk, index in forwards]
        waiting = pp - 1 - rank
        ahead = waiting if vpp == 1 else 2 * waiting + (vpp - 1) * pp
    return list(_alternating(forwards, backwards, min(ahead, len(forwards))))


def _interleaved(pp: int, vpp: int, microbatches: int) -> Iterator[tuple[int, int]]:
    """Chunk by chunk for every `pp` micro-batches, so that each arrives when it is waited for."""
    for first in range(0, microbatches, pp):
        for chunk in range(vpp):
            for index in range(first, min(first + pp, microbatches)):
                yield chunk, index


def _alternating(
    forwards: list[tuple[int, int]], backwards: list[tuple[int, int]], ahead: int
) -> Iterator[Action]:
    """Some forwards ahead, then a forward and a backward in turn, then the other backwards."""
    for chunk, index in forwards[:ahead]:
        yield Action("forward", chunk, index)
    for place, (chunk, index) in enumerate(backwards):
        if ahead + place < len(forwards):
            yield Action("forward", *forwards[ahead + place])
        yield Action("backward", chunk, index)
