"""Finds the first operator whose result differs between two Runs, and likely causes.

Compares the operators that the Runs recorded in one step, rank by rank. Also finds the first draw
of an unseeded generator.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Literal

import torch

from pytest_trainsafe.core.code_files import owner_of, relative
from pytest_trainsafe.judges.replay.determinism.nondeterministic import base_name
from pytest_trainsafe.judges.replay.rng.draws import Draw, Draws
from pytest_trainsafe.record.program_dtype.random_operators import COMPOSITE, OPERATORS
from pytest_trainsafe.trace.operators import OperatorCount, OperatorEvent
from pytest_trainsafe.trace.reader import Trace
from pytest_trainsafe.trace.rng.events import DrawEvent
from pytest_trainsafe.trace.rng.states import torch_state

#: What differs first at an operator: only its "result"; an "argument" that is not a tensor; an
#: "input" tensor, although no recorded operator before it differs; the "microbatch" in which the
#: operator is called; or the operator itself ("call").
Differs = Literal["result", "argument", "input", "microbatch", "call"]

#: Operators that return uninitialised memory.
_UNWRITTEN = frozenset(
    {
        *("empty", "empty_like", "empty_strided", "empty_permuted", "new_empty"),
        *("new_empty_strided", "resize_", "resize", "resize_as_"),
    }
)

_RANDOM = frozenset(
    name.partition(".")[0] for name in (*OPERATORS, *itertools.chain(*COMPOSITE.values()))
)

#: Random operators whose input tensor is only the memory that they write to.
_OVERWRITING = frozenset(
    f"aten.{name}"
    for name in (
        *("bernoulli_.float", "cauchy_.default", "exponential_.default", "geometric_.default"),
        *("log_normal_.default", "normal_.default", "random_.default", "random_.from"),
        *("random_.to", "uniform_.default"),
    )
)


@dataclass(frozen=True, slots=True)
class FirstOperator:
    """The first operator on a rank that differs between two Runs.

    `number` is its position among the rank's recorded operators. `event` records it in the
    first Run, and `other` records the operator at this position in the second Run.
    """

    differs: Differs
    rank: int
    number: int
    event: OperatorEvent
    other: OperatorEvent

    @property
    def is_random(self) -> bool:
        """Whether the operator draws random numbers."""
        return base_name(self.event.name) in _RANDOM

    @property
    def text(self) -> str:
        """A sentence that names the operator and says what differs first."""
        name = _described(self.event)
        if self.differs == "call":
            return f"one Run calls {name}, and the other calls {_described(self.other)} instead"
        if self.differs == "microbatch":
            return (
                f"{name} is the first to differ: {_microbatch(self.event)} in one Run, and "
                f"{_microbatch(self.other)} in the other"
            )
        if self.differs == "argument":
            shown = (
                f"({_cut(self.event.arguments)}) in one Run and ({_cut(self.other.arguments)}) in "
                "the other"
            )
            return f"{name} is the first to differ: its arguments are {shown}"
        if self.differs == "input":
            return (
                f"{name} is the first to differ: one of its inputs was not computed by a recorded "
                "operator"
            )
        if self.is_random:
            return f"{name} is the first to differ: it draws different random numbers"
        return f"{name} is the first to differ: its inputs are equal, but its results are not"


def first_operator(first: Trace, second: Trace, rank: int) -> FirstOperator | None:
    """The first operator that differs on a rank; None if no recorded operator differs."""
    pair = zip(
        first.ranks[rank].events_of(OperatorEvent),
        second.ranks[rank].events_of(OperatorEvent),
        strict=False,
    )
    for number, (one, other) in enumerate(pair):
        differs = _differs(one, other)
        if differs is not None:
            return FirstOperator(differs, rank, number, one, other)
    return None


def last_unwritten(trace: Trace, rank: int, before: int | None) -> OperatorEvent | None:
    """The last operator of the step on a rank that returned uninitialised memory, or None.

    Only operators before number `before` count; all of them if it is None.
    """
    events = trace.ranks[rank].events_of(OperatorEvent)[:before]
    made = (event for event in reversed(events) if base_name(event.name) in _UNWRITTEN)
    return next((event for event in made if event.line), None)


def unequal_counts(first: Trace, second: Trace, rank: int) -> str:
    """Words on why operators of one of two Runs have no counterpart; "" if all of them have one."""
    steps = [len(trace.ranks[rank].steps) for trace in (first, second)]
    if steps[0] != steps[1]:
        return f"the Runs have different numbers of steps, {steps[0]} and {steps[1]}"
    counts = [list(trace.ranks[rank].events_of(OperatorCount)) for trace in (first, second)]
    called = [sum(count.called for count in each) for each in counts]
    if called[0] != called[1]:
        return f"the step calls {called[0]} operators in one Run and {called[1]} in the other"
    missed = sum(count.called - count.recorded for count in counts[0])
    return f"{missed} operators were not recorded" if missed else ""


def _differs(one: OperatorEvent, other: OperatorEvent) -> Differs | None:
    if (one.name, one.at, one.module) != (other.name, other.at, other.module):
        return "call"
    if one.microbatch != other.microbatch:
        return "microbatch"
    if one.outputs == other.outputs or one.view or base_name(one.name) in _UNWRITTEN:
        return None
    if one.arguments != other.arguments:
        return "argument"
    if one.name in _OVERWRITING:
        return "result"
    # The input of `set_` may be a storage, which is not hashed.
    return "result" if one.inputs == other.inputs and base_name(one.name) != "set_" else "input"


def unseeded(first: Trace, second: Trace, rank: int, step: int) -> Draw | None:
    """The first draw from a generator whose state differs between Runs for no known reason.

    None if there is no such draw. Only draws up to the end of `step` count. A draw is left out
    if the reason is known: one Run drew more numbers from the generator before, or the program
    has just seeded the generator with a different seed in each Run.
    """
    found: list[Draw] = []
    streams: dict[str, list[list[Draw]]] = {}
    for side, trace in enumerate((first, second)):
        for draw in Draws.of(trace).by_rank[rank]:
            if draw.event.step <= max(step, 0) and _is_programs(draw):
                streams.setdefault(draw.event.generator, [[], []])[side].append(draw)
    for ones, others in streams.values():
        for one, other in itertools.takewhile(_continues, zip(ones, others, strict=False)):
            if one.event.before == other.event.before:
                continue
            if not (_is_seeded(one.event) and _is_seeded(other.event)):
                found.append(one)
            break
    return min(found, key=lambda draw: draw.order, default=None)


def _is_seeded(draw: DrawEvent) -> bool:
    """Whether a draw is the first one after the program seeded the generator with its own seed.

    Only a seed below 2**32 counts as the program's own: a seed that torch chooses at random has
    64 bits, and torch's default seed has 46.
    """
    if not draw.seed or int(draw.seed) >= 2**32:
        return False
    fresh = torch.Generator().manual_seed(int(draw.seed))
    return draw.before == torch_state(fresh)


def _continues(pair: tuple[Draw, Draw]) -> bool:
    one, other = (draw.event for draw in pair)
    return one.before != other.before or one.after == other.after


def _is_programs(draw: Draw) -> bool:
    """Whether the program's own code made the draw, and not a library.

    A library may draw random numbers for itself, for example for a file name. If the line of the
    draw is not known, the result is True for a generator that some code created, and False for
    the default generators of torch, NumPy and Python.
    """
    file = draw.event.line.rpartition(":")[0]
    if not file:  # the name of a created generator contains " of " and the line of its first use
        return " of " in draw.event.generator
    return owner_of(file) == "project"


def _described(event: OperatorEvent) -> str:
    where = f" in {event.module or 'the root module'}" if event.module is not None else ""
    at = f" at {relative(event.line)}" if event.line else ""
    return f"{event.name}{' (backward)' if event.backward else ''}{where}{at}"


def _microbatch(event: OperatorEvent) -> str:
    number = event.microbatch
    return "it is outside of micro-batches" if number is None else f"it is in micro-batch {number}"


def _cut(text: str) -> str:
    return text if len(text) <= 60 else f"{text[:60]}..."
