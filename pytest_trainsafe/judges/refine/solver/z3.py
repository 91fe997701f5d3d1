"""Whether two tensors of terms are equal: by their numbers, by simplifying, and by solving."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch

from pytest_trainsafe.arithmetic import Doubles, ExactError
from pytest_trainsafe.judges.refine.errors import CannotSayError, GraphError, InputRelationError
from pytest_trainsafe.judges.refine.solver.stages import Stage
from pytest_trainsafe.judges.refine.solver.terms import Terms, TooLargeError, solver

Verdict = Literal["equal", "different", "open"]
#: Milliseconds that z3 may take for one element.
_PATIENCE = 2_000


@dataclass(frozen=True)
class Answer:
    """What z3 says of a stage; `reason` is how it is proved, or why it is open."""

    tensor: str
    verdict: Verdict
    reason: str = ""


def answer(stage: Stage) -> Answer:
    """z3's verdict on a stage: "different" only if no unknown function takes part."""
    try:
        doubles = stage.holds_alone()
        if doubles is None:
            return Answer(stage.tensor, "open", "the stage does not stand alone")
        terms = Terms(doubles.decisions.replay())
        return _compared(stage, terms, *stage.both(terms))
    except TooLargeError as error:
        return Answer(stage.tensor, "open", f"size: {error}")
    except (CannotSayError, GraphError, InputRelationError, ExactError) as error:
        return Answer(stage.tensor, "open", f"the stage cannot be evaluated alone: {error}")


def refuted(stage: Stage) -> Answer:
    """z3's verdict on a stage that the field refutes, of which it need not hold in float64."""
    doubles = Doubles()
    stage.both(doubles)
    terms = Terms(doubles.decisions.replay())
    return _compared(stage, terms, *stage.both(terms))


def _compared(stage: Stage, terms: Terms, x: torch.Tensor, made: torch.Tensor) -> Answer:
    if x.numel() != made.numel():
        return Answer(stage.tensor, "different", "the shapes differ")
    pairs = set(zip(x.reshape(-1).tolist(), made.reshape(-1).tolist(), strict=True))
    apart = sorted(pair for pair in pairs if pair[0] != pair[1])
    if not apart:
        return Answer(stage.tensor, "equal", "the same terms")
    build = _Build(terms)
    solved = False
    for one, other in apart:
        verdict, reason = build.equal(one, other)
        if verdict != "equal":
            return Answer(stage.tensor, verdict, reason)
        solved = solved or reason == "solved"
    return Answer(stage.tensor, "equal", "solved" if solved else "simplified")


class _Build:
    """z3's expressions of terms, each made once."""

    def __init__(self, terms: Terms) -> None:
        self.z3: Any = solver()
        self.terms = terms
        self.made: dict[int, Any] = {}
        self.unknown_functions = False

    def equal(self, one: float, other: float) -> tuple[Verdict, str]:
        z3 = self.z3
        if not (abs(one) < float("inf") and abs(other) < float("inf")):
            return "open", "infinities"
        left, right = self.expression(int(one)), self.expression(int(other))
        rest = z3.simplify(left - right, som=True)
        if z3.is_rational_value(rest):
            zero = rest.as_fraction() == 0
            return ("equal", "simplified") if zero else ("different", "a constant apart")
        query = z3.Then("simplify", "solve-eqs", "smt").solver()
        query.set("timeout", _PATIENCE)
        query.add(left != right)
        found = query.check()
        if found == z3.unsat:
            return "equal", "solved"
        if found == z3.sat and not self.unknown_functions:
            return "different", "there are values for which they differ"
        if found == z3.sat:
            return "open", "it needs an identity of exp, log, sqrt or another function"
        return "open", "time"

    def expression(self, number: int) -> Any:
        """The expression of a term; those that it is made of are made first, without recursion."""
        waiting = [number]
        while waiting:
            each = waiting[-1]
            missing = [part for part in _parts(self.terms.table[each]) if part not in self.made]
            if missing:
                waiting += missing
            else:
                waiting.pop()
                if each not in self.made:
                    self.made[each] = self._made(self.terms.table[each])
        return self.made[number]

    def _made(self, term: Sequence[Any]) -> Any:
        z3, kind = self.z3, term[0]
        parts = [self.made[each] for each in _parts(term)]
        if kind == "number":
            return z3.RealVal(str(term[1]))
        if kind == "unknown":
            return z3.Real(f"x_{term[1]}")
        if kind == "sum":
            return z3.Sum(parts)
        if kind == "product":
            return parts[0] * parts[1]
        if kind == "inverse":
            return 1 / parts[0]
        self.unknown_functions = True
        name = f"{term[1]}/{len(parts)}"
        return z3.Function(name, *[z3.RealSort()] * (len(parts) + 1))(*parts)


def _parts(term: Sequence[Any]) -> Sequence[int]:
    if term[0] in ("number", "unknown"):
        return ()
    found: Sequence[int] = term[2:] if term[0] == "function" else term[1:]
    return found
