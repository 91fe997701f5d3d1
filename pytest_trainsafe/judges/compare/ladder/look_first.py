"""The line to look at first, which the terminal, GitHub and the page name alike.

The line at fault may be that of a class, or of a call, beside which a description names a more
telling one.
"""

from __future__ import annotations

from collections.abc import Sequence

from pytest_trainsafe.core.code_files import relative
from pytest_trainsafe.core.finding import Finding
from pytest_trainsafe.judges.compare.fault.clause import Clause, Kind
from pytest_trainsafe.judges.compare.fault.located import Located
from pytest_trainsafe.judges.compare.judgement import lead_of, suspect
from pytest_trainsafe.judges.compare.ladder.known_setting import is_setting
from pytest_trainsafe.report.source import method_at

#: The clauses that name a more telling line than the one at fault, by the phase.
_TELLING: dict[str, frozenset[Kind]] = {
    "forward": frozenset({"call", "set up apart"}),
    "backward": frozenset({"backward", "odd call"}),
    "unheld": frozenset({"caller"}),
}
_OF_SETTINGS: frozenset[Kind] = frozenset({"construction"})

#: The kinds of tensors and the phases that a module's backward computes.
_BACKWARD = frozenset({"activation_grad", "param_grad", "backward"})

_CLASS = "module class "


def look_first(
    located: Located | None, failing: Sequence[Finding], explained: bool = False
) -> tuple[str, list[str]]:
    """The "file:line" to look at first, what is there, and clauses on further places.

    "" and nothing if no line is known.
    Of a class it is the line of its forward, or of its backward if that is wrong and it has one.
    `explained` says that annotations are at fault, and no module.
    """
    lead = lead_of(failing) if failing else None
    if located is not None and located.source:
        source, (own, *others) = _most_telling(located, lead)
    elif lead is not None and not explained:
        source, own, others = lead.source, suspect(lead), []
    else:
        return "", []
    line, method = method_at(source, methods_of(phase_of(located, lead)))
    if not line:
        return source, [own, *others]
    return line, [own.replace(_CLASS, f"{method} of {_CLASS}"), *others]


def phase_of(located: Located | None, lead: Finding | None) -> str:
    """The phase of the first fault, or else the kind of the tensor that leads the report."""
    if located is not None and located.faults:
        return located.faults[0][0]
    return lead.where.kind if lead is not None and lead.where is not None else ""


def methods_of(phase: str) -> tuple[str, ...]:
    """The methods of a class that compute what is wrong, the most telling first."""
    if phase == "initial":
        return ("reset_parameters", "__init__")
    return ("backward", "forward") if phase in _BACKWARD else ("forward",)


def places_of(located: Located, lead: Finding | None) -> dict[str, Clause]:
    """The places of a description with the clause that names each, the most telling first.

    That is the line that calls the modules of a module whose own forward is wrong, the backward of
    an autograd function if a backward is wrong, or the construction of an optimizer whose settings
    differ; else the line at fault.  If the loss is wrong beside a backward, what is wrong is in the
    forward, too, which functions of its backward do not show.
    """
    phase = phase_of(located, lead)
    constructed = lead is not None and lead.pattern is not None and is_setting(lead.pattern)
    own = located.clauses[0]
    places = {located.source: own}
    for clause in located.clauses:
        for line, _ in clause.lines:
            places.setdefault(line, clause)
    telling = _OF_SETTINGS if constructed else _TELLING.get(phase, frozenset())
    beside = phase == "backward" and "loss" in {each for each, _ in located.faults}
    if beside or (phase == "unheld" and own.kind != "as due"):
        return places
    first = [line for line, clause in places.items() if clause.kind in telling]
    return {line: places[line] for line in dict.fromkeys((*first, *places))}


def _most_telling(located: Located, lead: Finding | None) -> tuple[str, list[str]]:
    """The first of `places_of`, and what its clause and the others say."""
    line, clause = next(iter(places_of(located, lead).items()))
    if line == located.source:
        return line, [*map(str, located.clauses)]
    own, *others = located.clauses
    left = [str(each) for each in others if each != clause]
    if clause.kind == "backward":
        left = [f"{what} at {relative(at)}" for at, what in clause.lines if at != line] + left
    at_fault = [f"{own} at {relative(located.source)}"] if own != clause else []
    return line, [clause.beside(line), *at_fault, *left]
