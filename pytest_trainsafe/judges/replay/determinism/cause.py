"""Finds why two Runs of one program differ, with further Runs that vary one thing at a time.

These Runs record every operator of the step in which the difference begins. The first two vary
nothing. If they agree, the cause may be something that is varied next: the order of sets or the
contents of uninitialised memory. Two Runs may agree by chance, so a cause is named only if Runs
that have it in common agree again, and Runs that do not differ again. Called by
`determinism.judge`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pytest_trainsafe.core.code_files import relative
from pytest_trainsafe.judges.replay.determinism.divergence import Divergence, first_divergence
from pytest_trainsafe.judges.replay.determinism.further_runs import FurtherRuns, MakeRuns, alike
from pytest_trainsafe.judges.replay.determinism.nondeterministic import listed
from pytest_trainsafe.judges.replay.determinism.operator_look import (
    FirstOperator,
    first_operator,
    last_unwritten,
    unequal_counts,
    unseeded,
)
from pytest_trainsafe.judges.replay.determinism.reads import (
    SEALED_RUNS,
    can_be_fixed,
    fixed_reads,
    likeliest,
    proven,
    reads_before,
    suspected,
)
from pytest_trainsafe.judges.replay.determinism.variation import Environ, variables
from pytest_trainsafe.judges.replay.rng.draws import describe_draw
from pytest_trainsafe.trace.reader import Trace
from pytest_trainsafe.trace.run_spec import RunSpec

Code = Literal["order", "uninitialised", "unseeded", "time", "process", "operator", "unknown"]

#: Environments of Runs, which differ in one thing from the first.
_SAME, _HASHED, _FILLED = variables(1, 1), variables(2, 1), variables(1, 2)


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
    """The cause of the difference `found` between Runs of `spec`. Makes 2 to 12 further Runs."""
    run = FurtherRuns(spec, found.step, make)
    one, other = run((), ())
    differs = first_divergence(one, other)
    if differs is not None:
        return _explained(run, (), one, other, differs)
    # Runs in which nothing is varied may be forked from one process, and then have equal
    # addresses. Runs in new processes do not, so that two of them are compared as well.
    one, other, hashed, filled = run(_SAME, _SAME, _HASHED, _FILLED)
    differs = first_divergence(one, other)
    if differs is not None:
        return _explained(run, _SAME, one, other, differs)
    by_order, by_memory = first_divergence(one, hashed), first_divergence(one, filled)
    if by_order is not None and (by_memory is None or by_order.order <= by_memory.order):
        differs, varied, environ = by_order, hashed, _HASHED
    elif by_memory is not None:
        differs, varied, environ = by_memory, filled, _FILLED
    else:
        reads = suspected(reads_before(one, found.rank, None))
        text = f"in six further Runs the difference did not occur again. {_RARE}{reads}"
        return Cause("unknown", text)
    again, varied_again = run(_SAME, environ)
    for first, second, of in ((one, again, _SAME), (varied, varied_again, environ)):
        if (unlike := first_divergence(first, second)) is not None:
            return _explained(run, of, first, second, unlike)
    operator = first_operator(one, varied, differs.rank)
    if environ == _FILLED:
        return _uninitialised(one, operator, differs.rank)
    text = (
        "it changes with PYTHONHASHSEED: something iterates over a set, or sorts by hash(), "
        "and strings hash differently in every process. Sort the set before iterating over it"
    )
    return Cause("order", text, _line(operator), operator)


_RARE = (
    "It is rare, or it depends on the machine's load (a race between threads or processes, a "
    "timeout) or on addresses (id(), a set of objects)"
)


def _explained(
    run: FurtherRuns, environ: Environ, one: Trace, other: Trace, differs: Divergence
) -> Cause:
    """The cause of the difference `differs` between Runs that should be equal in all that varies.

    Both have the environment `environ`.
    """
    rank = differs.rank
    operator = first_operator(one, other, rank)
    cause = _without_runs(one, other, differs, operator)
    if cause.code == "operator":
        return cause
    reads = reads_before(one, rank, operator)
    if can_be_fixed(reads):
        sealed = run.sealed(environ, SEALED_RUNS)
        fixed = fixed_reads(reads, sealed[0], rank) if sealed else []
        if len(sealed) == SEALED_RUNS and alike(sealed) and fixed:
            code, main = likeliest(fixed)
            state = "a generator is in different states when it draws: "
            drawn = f"{state}{cause.draw}. " if cause.draw else ""
            return Cause(code, drawn + proven(fixed), main.at, operator, cause.draw)
        reads = [read for read in reads if read not in fixed]
    text, source = cause.text + suspected(reads), cause.source
    if cause.code == "unseeded" and not cause.draw and reads:
        source = reads[-1].at  # the generator was seeded, perhaps with the result of this call
    if cause.code == "unknown" and environ == ():
        # Fresh memory differs between processes by itself, unless both Runs fill it alike.
        filled = run(_SAME, _SAME, _FILLED)
        if alike(filled[:2]) and not alike(filled[1:]):
            again = run(_SAME, _FILLED)
            if alike([filled[0], again[0]]) and alike([filled[2], again[1]]):
                return _uninitialised(one, operator, rank)
    elif cause.code == "unknown":
        text += (
            ". Two Runs in which nothing was varied agree, and two new processes with equal "
            "PYTHONHASHSEED and equally filled memory do not: if it is not by chance, it depends "
            "on addresses: id(), a set of objects, threading.get_ident()"
        )
    return Cause(cause.code, text, source, operator, cause.draw)


def _uninitialised(one: Trace, operator: FirstOperator | None, rank: int) -> Cause:
    """The cause if Runs differ where memory is filled with other bytes, and agree elsewhere."""
    number = None if operator is None else operator.number
    made = last_unwritten(one, rank, number)
    last = "" if made is None else f" (the last one before it is at {relative(made.line)})"
    text = (
        "it changes with the contents of uninitialised memory, so memory is read before it is "
        f"written: that of torch.empty or a similar operator{last}, of numpy.empty, or of an "
        "extension. Use torch.zeros, or fill the whole tensor"
    )
    return Cause("uninitialised", text, _line(operator), operator)


def _without_runs(
    one: Trace, other: Trace, differs: Divergence, operator: FirstOperator | None
) -> Cause:
    """The cause of the difference as far as the two Runs show it, without further Runs."""
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
        why = unequal_counts(one, other, differs.rank) or "all operators are alike"
        return Cause("unknown", f"no recorded operator of the step differs: {why}")
    if operator.is_random and itself:
        text = (
            "its generator has another seed in every Run, or drew other numbers before. Seed it "
            "from ctx.seed"
        )
        return Cause("unseeded", text, source, operator)
    if itself:
        text = (
            "the operator is nondeterministic, but torch does not document it so; check custom "
            "kernels, and threads that write to the same memory"
        )
        return Cause("unknown", text, source, operator)
    return Cause("unknown", _FROM_OUTSIDE[operator.differs], source, operator)


_FROM_OUTSIDE = {
    "input": "its input is computed outside of torch's operators, from an unknown source",
    "argument": "its arguments are computed outside of torch's operators, from an unknown source",
    "call": "the program decides outside of torch's operators what it calls, and it is not known "
    "by what",
    "microbatch": "the Runs have their micro-batches in another order, and it is not known by what",
}


def _line(operator: FirstOperator | None) -> str:
    return "" if operator is None else operator.event.line
