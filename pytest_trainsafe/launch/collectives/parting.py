"""Finds the collective at which two ranks part: from there on, one is a call behind the other.

A rank that leaves out a collective takes the next one in its place.  If both have the same shape,
the ranks seem to agree until a rank has no call left, often at the end of the program.  The lines
of their calls show where it began.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

#: Maximum number of calls by which one rank may lag behind the other.
_BAND = 12
#: Maximum number of calls of a rank after the first difference; an alignment takes a fraction of a
#: second then.
_LONGEST = 20_000
#: A pair of calls from the same line is worth more than a call that is left out costs, and a pair
#: from different lines costs less than two calls left out: a branch by rank is such a pair.
_SAME, _LEFT_OUT = 2, -1
_PAIR, _ONLY_B, _ONLY_A = range(3)
_UNREACHED = -(10**9)


class Parting(NamedTuple):
    """The index of the call at which two ranks part, and whether the first one makes it."""

    at: int
    by_first: bool


def parting(a: Sequence[object], b: Sequence[object]) -> Parting | None:
    """Where two ranks part, from the lines of all their calls; None if they do not.

    Different lines are no parting if the ranks are in step again afterwards, as they are after a
    branch by rank in which each makes one call.  Of several partings it is the last, after which
    the ranks are never in step again.
    """
    same = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), None)
    if same is None or max(len(a), len(b)) - same > _LONGEST:
        return None
    found = _last_gap(a[same:], b[same:])
    if found is None:
        return _never_same_again(a, b)
    at, by_first = same + found.at, found.by_first
    end, more, less = min(len(a), len(b)), *((a, b) if by_first else (b, a))
    branches = set(zip(a[:at], b[:at], strict=True))
    while (
        at < end
        and (
            a[at] == b[at]  # several calls of one line
            or ((a[at], b[at]) in branches and less[at] not in more[at + 1 : at + 2])
        )
    ):
        at += 1
    return Parting(at, by_first) if at < end else None


def _last_gap(a: Sequence[object], b: Sequence[object]) -> Parting | None:
    """Where the best alignment of two sequences leaves equal indices and does not return to them.

    What follows the end of either sequence is not aligned: that rank may have been stopped.
    """
    steps: list[bytearray] = []
    width = 2 * _BAND + 1
    above = [_UNREACHED] * (width + 1)
    best: tuple[int, int, int, int] | None = None
    for i in range(len(a) + 1):
        row, taken = [_UNREACHED] * (width + 1), bytearray(width)
        for k in range(max(0, _BAND - i), min(width, len(b) - i + _BAND + 1)):
            j = i + k - _BAND
            if i == j == 0:
                row[k] = 0
                continue
            score, step = _UNREACHED, _PAIR
            if i and j:
                score = above[k] + (_SAME if a[i - 1] == b[j - 1] else 0)
            if j and k and row[k - 1] + _LEFT_OUT > score:
                score, step = row[k - 1] + _LEFT_OUT, _ONLY_B
            if i and above[k + 1] + _LEFT_OUT > score:
                score, step = above[k + 1] + _LEFT_OUT, _ONLY_A
            row[k], taken[k] = score, step
            if i == len(a) or j == len(b):
                best = max(best or (_UNREACHED, 0, 0, 0), (score, -abs(k - _BAND), i, j))
        steps.append(taken)
        above = row
    return None if best is None else _leaves(steps, best[2], best[3])


def _leaves(steps: Sequence[bytearray], i: int, j: int) -> Parting | None:
    """The last index that is equal in both sequences on the way to `i` and `j`; None if these are.

    `steps` has the last step of the way to each pair of indices.
    """
    step = _PAIR
    while i != j:
        step = steps[i][j - i + _BAND]
        i, j = i - (step != _ONLY_B), j - (step != _ONLY_A)
    return None if step == _PAIR else Parting(i, step == _ONLY_A)


def _never_same_again(a: Sequence[object], b: Sequence[object]) -> Parting | None:
    """Where two sequences begin to differ until one ends; None if it may be a branch by rank."""
    at = min(len(a), len(b))
    while at and a[at - 1] != b[at - 1]:
        at -= 1
    if not at or at == min(len(a), len(b)):
        return None
    before = zip(a[:at], b[:at], strict=True)
    return None if (a[at], b[at]) in before else Parting(at, True)
