"""The line to look at first, which the terminal, GitHub and the page name alike.

The line at fault may be that of a class, or of a call, beside which a description names a more
telling one.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from pytest_trainsafe.core.code_files import relative
from pytest_trainsafe.core.finding import Finding, Located
from pytest_trainsafe.judges.compare.judgement import lead_of, suspect
from pytest_trainsafe.judges.compare.ladder.known_setting import is_setting
from pytest_trainsafe.report.source import method_at

PLACE = re.compile(r"(?<!\S)([^\s:]+\.py:\d{1,7})\b")

#: Clauses that name a more telling place than the class at fault, by the phase.
_TELLING = {
    "forward": re.compile(r"(?!the model )\S.* is called at |.*, so look at what .* set up"),
    "backward": re.compile(r"its backward runs |\S+ over .*, between calls over "),
    "unheld": re.compile(r"called at "),
}
#: How a description ends the clause on a line that makes the same change in the reference.
_AS_DUE = ", as in the reference"
_CONSTRUCTED = re.compile(r"\S+ is constructed at ")

#: The kinds of tensors and the phases that a module's backward computes.
_BACKWARD = frozenset({"activation_grad", "param_grad", "backward"})

_CLASS = "module class "


def look_first(
    located: Located | None, failing: Sequence[Finding], explained: bool = False
) -> tuple[str, str]:
    """The "file:line" to look at first, and clauses on it and on further places; "" if unknown.

    Of a class it is the line of its forward, or of its backward if that is wrong and it has one.
    `explained` says that annotations are at fault, and no module.
    """
    lead = lead_of(failing) if failing else None
    if located is not None and located.source:
        source, what = _most_telling(located, lead)
    elif lead is not None and not explained:
        source, what = lead.source, suspect(lead)
    else:
        return "", ""
    line, method = method_at(source, methods_of(phase_of(located, lead)))
    if not line:
        return source, what
    own, *others = what.split("; ")
    return line, "; ".join((own.replace(_CLASS, f"{method} of {_CLASS}"), *others))


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


def places_of(located: Located, lead: Finding | None) -> dict[str, str]:
    """The places of a description with the clause that names each, the most telling first.

    That is the line that calls the modules of a module whose own forward is wrong, the backward of
    an autograd function if a backward is wrong, or the construction of an optimizer whose settings
    differ; else the line at fault.  If the loss is wrong beside a backward, what is wrong is in the
    forward, too, which functions of its backward do not show.
    """
    phase = phase_of(located, lead)
    constructed = lead is not None and lead.pattern is not None and is_setting(lead.pattern)
    own, *others = located.what.split("; ")
    places = {located.source: own}
    for clause in (own, *others):
        for place in PLACE.findall(clause):
            places.setdefault(place, clause)
    telling = _CONSTRUCTED if constructed else _TELLING.get(phase)
    beside = phase == "backward" and "loss" in {each for each, _ in located.faults}
    if telling is None or beside or (phase == "unheld" and _AS_DUE not in own):
        return places
    first = [place for place, clause in places.items() if telling.match(clause)]
    return {place: places[place] for place in dict.fromkeys((*first, *places))}


def _most_telling(located: Located, lead: Finding | None) -> tuple[str, str]:
    """The first of `places_of`, and a description that begins with its clause."""
    place, clause = next(iter(places_of(located, lead).items()))
    if place == located.source:
        return place, located.what
    own, *others = located.what.split("; ")
    others = [each for each in others if each != clause]
    at = f"{own} at {relative(located.source)}" if own != clause else ""
    return place, "; ".join(filter(None, (without(place, clause, located.source), at, *others)))


def without(place: str, clause: str, source: str) -> str:
    """A clause without the place that is shown beside it; `source` is the line at fault."""
    here = rf"{re.escape(place)}(?!\d)"
    if found := re.fullmatch(rf"(.*) at (\S+), called at {here}", clause):
        return f"calls {found[2]}, where {found[1]}"
    if re.fullmatch(rf"called at {here}", clause):
        return f"leads to {relative(source)}"
    if re.match(rf"makes the loss from what is computed at .*{here}", clause):
        return "the loss is made from what is computed here"
    if re.match(r"the loss is computed with ", clause):
        calls = clause.removeprefix("the loss is computed with ").split(", ")
        here_only = next(each for each in calls if re.search(rf" at {here}", each))
        return f"the loss is computed with {here_only.partition(' at ')[0]}"
    if found := re.fullmatch(r"(\S+) is defined at (\S+), which runs (.*)", clause):
        runs = re.search(rf"(\S+) at {here}", found[3])
        return f"{found[1]} is defined" if runs is None else f"{found[1]} runs {runs[1]}"
    clause = clause.replace(", called at ", ", called by ")
    return re.sub(rf"(?:,? is|,)? at {here}", "", clause)
