"""The global numbers of a step's micro-batches, and which of them a dp rank computes.

Called by `ctx.microbatches`.  A micro-batch has the same number and the same data at every Point:
the reference computes all of them in sequence, and dp ranks divide them.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from pytest_trainsafe.record.clock import ProgramError

#: "contiguous", "strided" or "split"; or a sequence of all numbers of a step, which is cut into one
#: block per dp rank; or a function of a dp rank and the number of dp ranks that returns that
#: rank's numbers.
MicrobatchOrder = str | Sequence[int] | Callable[[int, int], Iterable[int]]

#: Every dp rank computes a slice of every micro-batch.
SPLIT = "split"

#: Maximum number of entries that an error lists.
_MAX_LISTED = 8


def numbers_of(
    total: int, rank: int, ranks: int, order: MicrobatchOrder = "contiguous"
) -> Sequence[int]:
    """The numbers of the micro-batches that dp rank `rank` of `ranks` computes one after another.

    `total` is the number of micro-batches of a step over all dp ranks.  `order` says how they are
    divided among the ranks:

    - "contiguous": each rank computes one block of consecutive numbers;
    - "strided": rank r computes r, r + `ranks`, r + 2 * `ranks` and so on;
    - "split": every rank computes a slice of every micro-batch, so all numbers are returned;
    - a sequence of all numbers, which is cut into one block per rank;
    - a function, whose result `order(dp_rank, dp_ranks)` has the numbers of a rank.

    Raises ProgramError if `total` or `order` is invalid, or if a sequence or a function does not
    give each number to exactly one rank.  Except for "split" and a function, also raises it if
    `total` is not a multiple of `ranks`.
    """
    given: Any = total
    if not isinstance(given, int) or total < 1:
        raise ProgramError(
            f"ctx.microbatches({total!r}): the total must be an integer of at least 1, the number "
            "of micro-batches of a step over all dp ranks"
        )
    if callable(order):
        return _own(total, rank, ranks, order)
    if isinstance(order, str) and order == SPLIT:
        return range(total)
    if total % ranks:
        raise ProgramError(
            f"ctx.microbatches({total}): {total} micro-batches cannot be divided evenly among "
            f"dp={ranks} ranks; use a multiple of {ranks}, exclude the Point with "
            "`requires(divides(...))`, or pass `order` a function that divides them unevenly"
        )
    share = total // ranks
    run = slice(rank * share, (rank + 1) * share)
    if isinstance(order, str):
        if order == "contiguous":
            return range(total)[run]
        if order == "strided":
            return range(rank, total, ranks)
        raise _unknown(total, order)
    try:
        numbers = _integers(order)
    except TypeError:
        raise _unknown(total, order) from None
    _require_each_once(total, [numbers], "the sequence")
    return numbers[run]


def permuted(numbers: Sequence[int], total: int, order: Sequence[int]) -> Sequence[int]:
    """Replaces each number n by order[n]; returns the numbers unchanged if `order` is empty.

    Raises ProgramError unless `order` has `total` entries.
    """
    if not order:
        return numbers
    if len(order) != total:
        raise ProgramError(
            f"ctx.microbatches({total}): this Run changes the order of the {len(order)} "
            f"micro-batches of a step, so every step must have {len(order)} micro-batches"
        )
    return [order[number] for number in numbers]


def _own(
    total: int, rank: int, ranks: int, order: Callable[[int, int], Iterable[int]]
) -> Sequence[int]:
    """The numbers that a program's function `order` returns for dp rank `rank`.

    Calls the function for every dp rank, to check that together they have each number once.
    """
    shares = []
    for each in range(ranks):
        given: Any = order(each, ranks)
        try:
            shares.append(_integers(given))
        except TypeError:
            raise ProgramError(
                f"ctx.microbatches({total}): the function `order` returned {given!r} for dp rank "
                f"{each}; order(dp_rank, dp_ranks) must return the numbers of that rank's "
                "micro-batches, a sequence of integers"
            ) from None
    _require_each_once(total, shares, "the function")
    return shares[rank]


def _integers(values: Iterable[Any]) -> list[int]:
    """The values as a list; raises TypeError unless all are integers."""
    return [operator.index(value) for value in values]


def _require_each_once(total: int, shares: Sequence[Sequence[int]], source: str) -> None:
    count = Counter(number for share in shares for number in share)
    missing = [number for number in range(total) if number not in count]
    twice = sorted(number for number, times in count.items() if times > 1)
    beyond = sorted(number for number in count if not 0 <= number < total)
    problems = [
        f"{_listed(numbers)} {what}"
        for numbers, what in (
            (missing, "given to no dp rank"),
            (twice, "given twice"),
            (beyond, f"outside of 0 to {total - 1}"),
        )
        if numbers
    ]
    if problems:
        raise ProgramError(
            f"ctx.microbatches({total}): {source} `order` must give each micro-batch from 0 to "
            f"{total - 1} to exactly one dp rank, but {'; '.join(problems)}"
        )


def _listed(numbers: Sequence[int]) -> str:
    shown = ", ".join(map(str, numbers[:_MAX_LISTED]))
    more = f" and {len(numbers) - _MAX_LISTED} more" if len(numbers) > _MAX_LISTED else ""
    return f"{shown}{more} {'are' if len(numbers) > 1 else 'is'}"


def _unknown(total: int, order: object) -> ProgramError:
    return ProgramError(
        f"ctx.microbatches({total}, order={order!r}): order must be 'contiguous' (a dp rank "
        "computes a block of consecutive numbers), 'strided' (rank r of n computes r, r+n, r+2n "
        "and so on), 'split' (every dp rank computes a slice of each micro-batch), a sequence of "
        "all numbers that is cut into blocks, or a function of a dp rank and the number of dp "
        "ranks that returns the numbers of that rank"
    )
