"""Finds the calls on which a difference may depend, such as of the clock, and describes them.

The Runs record such calls of the program (`judges/replay/determinism/instrument/outside_reads.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pytest_trainsafe.core.code_files import relative
from pytest_trainsafe.judges.replay.determinism.operator_look import FirstOperator
from pytest_trainsafe.trace.operators import OutsideRead
from pytest_trainsafe.trace.reader import Trace

#: How many sealed Runs must agree before a read is called the cause of a difference.
SEALED_RUNS = 4

#: The most calls that a text names.
_NAMED = 3

#: What a read says about the cause. The first kinds are more often a cause: programs read the
#: clock to measure their speed.
Kind = Literal["unseeded", "process", "time"]
_KINDS: tuple[Kind, ...] = ("unseeded", "process", "time")


#: What returns an address, and what starts a thread.  A sealed Run cannot fix either.
_ADDRESSES, _THREADS = ("id", "threading.get_ident"), ("threading.Thread.start",)


def can_be_fixed(reads: Sequence[OutsideRead]) -> bool:
    """Whether a sealed Run may give fixed values to one of the reads."""
    return any(read.what not in (*_ADDRESSES, *_THREADS) for read in reads)


def reads_before(trace: Trace, rank: int, operator: FirstOperator | None) -> list[OutsideRead]:
    """The program's reads on a rank before the operator, or all of them without one, in order."""
    events = trace.ranks[rank].events_of(OutsideRead)
    return [read for read in events if operator is None or read.before <= operator.number]


def fixed_reads(reads: Sequence[OutsideRead], sealed: Trace, rank: int) -> list[OutsideRead]:
    """Those of the reads that return fixed values in the sealed Run, which does not record them."""
    real = {(read.what, read.at) for read in sealed.ranks[rank].events_of(OutsideRead)}
    return [read for read in reads if (read.what, read.at) not in real]


def likeliest(reads: Sequence[OutsideRead]) -> tuple[Kind, OutsideRead]:
    """The last read of the kind that is most often a cause, and this kind."""
    kind = min((_kind(read) for read in reads), key=_KINDS.index)
    return kind, next(read for read in reversed(reads) if _kind(read) == kind)


def proven(reads: Sequence[OutsideRead]) -> str:
    """A sentence: Runs agree if these `reads` return fixed values, and what to do about it."""
    kind, main = likeliest(reads)
    others = [read for read in reads if read is not main]
    also = f", and so {'is' if len(others) == 1 else 'are'} {_list(others)}" if others else ""
    of_all = "The result depends on at least one of them. " if others else ""
    advice = _advice(kind, main.what)
    return (
        f"{main.what} is called before this, at {relative(main.at)}{also}; in {SEALED_RUNS} Runs "
        f"these calls returned fixed values, and the results agreed. {of_all}{advice}"
    )


def _advice(kind: Kind, what: str) -> str:
    if kind == "process":
        return f"{what} differs in every process. Use ctx.rank to distinguish ranks"
    if kind == "time":
        return f"{what} differs in every Run. Count steps instead of seconds"
    if "seed" in what:
        return f"{what} takes another seed in every Run. Seed the generator from ctx.seed"
    return f"{what} cannot be seeded. Draw from a generator that is seeded from ctx.seed"


def suspected(reads: Sequence[OutsideRead]) -> str:
    """Words to append to a text: these `reads` come before the difference; "" for none."""
    addresses = [read for read in reads if read.what in _ADDRESSES]
    threads = [read for read in reads if read.what in _THREADS]
    others = [read for read in reads if read.what not in (*_ADDRESSES, *_THREADS)]
    text = f". Called before it, with other results in every Run: {_list(others)}" if others else ""
    if addresses:
        text += f". Called before it, with results that are addresses: {_list(addresses)}"
    if threads:
        text += (
            ". Threads that the program starts may do their work in another order in every Run: "
            f"{_list(threads)}"
        )
    return text


def _kind(read: OutsideRead) -> Kind:
    if read.what.startswith(("time.", "datetime.", "date.")):
        return "time"
    return "process" if read.what == "os.getpid" else "unseeded"


def _list(reads: Sequence[OutsideRead]) -> str:
    named = [f"{read.what} at {relative(read.at)}" for read in reads[-_NAMED:]]
    more = len(reads) - len(named)
    return ", ".join(named) + (f" and {more} more" if more else "")
