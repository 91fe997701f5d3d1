"""Finds why two Runs of one program differ, with further Runs that vary one thing at a time.

These Runs record every operator of the step in which the difference begins. The first two vary
nothing. If they agree, the cause is something that is varied next: the order of sets or the
contents of uninitialised memory. Called by `determinism.judge`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from msgspec import structs

from pytest_trainsafe.core.code_files import relative
from pytest_trainsafe.judge.replay.determinism.divergence import Divergence, first_divergence
from pytest_trainsafe.judge.replay.determinism.nondeterministic import listed
from pytest_trainsafe.judge.replay.determinism.operator_look import (
    FirstOperator,
    first_operator,
    last_read,
    left_out,
    unseeded,
)
from pytest_trainsafe.judge.replay.determinism.variation import Environ, variables
from pytest_trainsafe.judge.replay.draws import describe_draw
from pytest_trainsafe.trace.operators import OutsideRead
from pytest_trainsafe.trace.reader import Trace
from pytest_trainsafe.trace.run_spec import RunSpec

Code = Literal["order", "uninitialised", "unseeded", "time", "process", "operator", "unknown"]

#: Starts the Runs of these specs together, waits for them, and returns their traces.
MakeRuns = Callable[[Sequence[RunSpec]], Sequence[Trace]]


@dataclass(frozen=True, slots=True)
class Cause:
    """Why Runs differ.

    `text` follows the word "so" in a report, and `source` is the line at fault. `operator` is
    the first operator that differs; None if no operators were recorded, or none of them
    differs. `draw` describes the draw of an unseeded generator; "" if there is none.
    """

    code: Code
    text: str
    source: str = ""
    operator: FirstOperator | None = None
    draw: str = ""


def cause_of_draws(first: Trace, second: Trace, found: Divergence) -> Cause | None:
    """The cause "unseeded", if the RNG ledgers of the Runs show an unseeded generator; else None.

    Draws up to the step of the difference `found` are searched, on its rank.
    """
    draw = unseeded(first, second, found.rank, found.step)
    if draw is None:
        return None
    what = f"{describe_draw(draw)}, from {draw.event.generator}"
    text = f"the state of a generator differs between Runs when it draws: {what}"
    return Cause(
        "unseeded",
        f"{text}. Seed it from ctx.seed before its first draw",
        draw.event.line,
        draw=what,
    )


def find_cause(spec: RunSpec, found: Divergence, make: MakeRuns) -> Cause:
    """The cause of the difference `found` between Runs of `spec`. Makes two to six further Runs."""
    looked = structs.replace(spec, operators=max(found.step, 0))

    def run(repeat: int, environ: Environ = ()) -> RunSpec:
        return structs.replace(looked, repeat=repeat, environ=environ)

    one, other = make([run(1), run(2)])
    differs = first_divergence(one, other)
    if differs is not None:
        cause = _unvaried(one, other, differs)
        if cause.code != "unknown":
            return cause
        read = _read_before(one, differs, cause.operator)
        if read is not None:
            still = [structs.replace(run(repeat), sealed=True) for repeat in (1, 2)]
            if first_divergence(*make(still)) is None:
                return _outside(read, cause.operator)
        # Fresh memory differs between processes by itself. If the difference disappears when
        # both Runs fill it with the same bytes, uninitialised memory is the cause.
        one, other = make([run(1, variables(1, 1)), run(2, variables(1, 1))])
        if first_divergence(one, other) is None:
            return _uninitialised(cause.operator)
        return cause
    one, hashed, filled = make(
        [run(1, variables(1, 1)), run(1, variables(2, 1)), run(1, variables(1, 2))]
    )
    by_order, by_memory = first_divergence(one, hashed), first_divergence(one, filled)
    if by_order is not None and (by_memory is None or by_order.order <= by_memory.order):
        operator = first_operator(one, hashed, by_order.rank)
        text = (
            "it changes with PYTHONHASHSEED: something iterates over a set, or sorts by hash(), "
            "and strings hash differently in every process. Sort the set before iterating over it"
        )
        return Cause("order", text, _line(operator), operator)
    if by_memory is not None:
        return _uninitialised(first_operator(one, filled, by_memory.rank))
    text = (
        "in five further Runs the difference did not occur again. It is rare, or it depends on "
        "the machine's load: a race between threads, a timeout"
    )
    return Cause("unknown", text)


def _uninitialised(operator: FirstOperator | None) -> Cause:
    text = (
        "it depends on uninitialised memory: a tensor of torch.empty or a similar function is read "
        "before it is filled. Use torch.zeros, or fill the whole tensor"
    )
    return Cause("uninitialised", text, _line(operator), operator)


def _unvaried(one: Trace, other: Trace, differs: Divergence) -> Cause:
    """The cause of the difference `differs` between two Runs in which nothing was varied."""
    operator = first_operator(one, other, differs.rank)
    source = _line(operator)
    itself = operator is not None and operator.differs == "result"
    if itself and operator is not None and not operator.is_random:
        known = listed(operator.event.name)
        if known is not None:
            name, why = known
            text = (
                f"torch documents {name} as nondeterministic: {why}. Run under "
                "deterministic_runtime(), or use another operator"
            )
            return Cause("operator", text, source, operator)
    drawn = cause_of_draws(one, other, differs)
    if drawn is not None:
        return Cause(drawn.code, drawn.text, drawn.source or source, operator, drawn.draw)
    if operator is None:
        missed = left_out(one)
        why = f"{missed} operators were not recorded" if missed else "all operators are alike"
        return Cause("unknown", f"no recorded operator of the step differs ({why})")
    if operator.is_random:
        text = (
            "it draws from a generator that has a different seed in every Run; seed it from "
            "ctx.seed"
        )
        return Cause("unseeded", text, source, operator)
    if itself:
        text = (
            "the operator is nondeterministic, but torch does not document it so; check custom "
            "kernels, and threads that write to the same memory"
        )
        return Cause("unknown", text, source, operator)
    text = "its input is computed outside of torch's operators, from an unknown source"
    return Cause("unknown", text, source, operator)


def _read_before(
    trace: Trace, differs: Divergence, operator: FirstOperator | None
) -> OutsideRead | None:
    number = len(trace.ranks[differs.rank].events) if operator is None else operator.number
    return last_read(trace.ranks[differs.rank], number)


def _outside(read: OutsideRead, operator: FirstOperator | None) -> Cause:
    """The cause if Runs agree once the clock, process id and system random numbers are fixed.

    `read` is the last call before `operator` that read one of these three.
    """
    where = f"{read.what} is called before it, at {relative(read.at)}"
    agree = "Runs in which such calls return fixed values agree"
    if read.what == "os.urandom":
        advice = "it draws numbers that cannot be seeded. Draw from a seeded generator"
        return Cause("unseeded", f"{where}, and {agree}: {advice}", read.at, operator)
    if read.what == "os.getpid":
        advice = "its result differs in every process. Use ctx.rank to distinguish ranks"
        return Cause("process", f"{where}, and {agree}: {advice}", read.at, operator)
    advice = "the result depends on the time. Count steps instead of seconds"
    return Cause("time", f"{where}, and {agree}: {advice}", read.at, operator)


def _line(operator: FirstOperator | None) -> str:
    return "" if operator is None else operator.event.line
