"""The lines of the code at fault, and of every other place that its description names."""

from __future__ import annotations

import re
from collections.abc import Sequence

from pytest_trainsafe.core.finding import Finding, Located
from pytest_trainsafe.judges.compare.judgement import lead_of
from pytest_trainsafe.report.panels import Code
from pytest_trainsafe.report.source import code_at

#: The most places that are shown.
MOST_PLACES = 5

_PLACE = re.compile(r"(?<!\S)([^\s:]+\.py:\d{1,7})\b")

#: The kinds of tensors and the phases that a module's backward computes.
_BACKWARD = frozenset({"activation_grad", "param_grad", "backward"})
#: Those that a module's forward computes.
_FORWARD = frozenset({"activation", "decision", "forward"})


def source(located: Located | None, failing: Sequence[Finding], explained: bool) -> list[Code]:
    """The lines to look at, the most probable first.

    A module has those of its forward, or of its backward if it is wrong and the class defines one.
    The first module whose forward is wrong also has those of its constructor, which sets the
    numbers that the forward uses.  `explained` says that annotations are at fault, and no module.
    """
    lead = lead_of(failing) if failing else None
    kind = lead.where.kind if lead is not None and lead.where is not None else ""
    phase = located.faults[0][0] if located is not None and located.faults else kind
    methods = ("backward", "forward") if phase in _BACKWARD else ("forward",)
    places: dict[str, tuple[str, str]] = {}
    if located is not None and located.source:
        own, *others = located.what.split("; ")
        places[located.source] = "Source: look here first", own
        for clause in [own, *others]:
            for place in _PLACE.findall(clause):
                places.setdefault(place, ("Source: look here too", clause))
    elif lead is not None and lead.source and not explained:
        note = f"class {lead.module_class}" if lead.module_class else ""
        places[lead.source] = "Source: the module of the first wrong tensor", note
    made: list[Code] = []
    for place, said in places.items():
        code = code_at(place, *said, methods)
        if code is None or any(_has(shown, code) for shown in made):
            continue
        made.append(code)
        if phase in _FORWARD and len(made) == 1:
            constructor = code_at(place, "Source: its constructor", said[1], ("__init__",))
            if constructor is not None and not _has(code, constructor):
                made.append(constructor)
    return made[:MOST_PLACES]


def _has(shown: Code, code: Code) -> bool:
    """Whether the marked line of `code` is among the lines that `shown` has."""
    same = shown.file.rpartition(":")[0] == code.file.rpartition(":")[0]
    return same and shown.first <= code.marked < shown.first + len(shown.lines)
