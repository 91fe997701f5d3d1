"""The lines of the code at fault, and of every other place that its description names."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence

import msgspec

from pytest_trainsafe.core.code_files import relative
from pytest_trainsafe.core.finding import Finding
from pytest_trainsafe.judges.compare.fault.clause import Clause
from pytest_trainsafe.judges.compare.fault.located import Located
from pytest_trainsafe.judges.compare.judgement import lead_of, suspect
from pytest_trainsafe.judges.compare.ladder.look_first import (
    methods_of,
    phase_of,
    places_of,
)
from pytest_trainsafe.judges.compare.localize.code.ran import UNKNOWN, Ran
from pytest_trainsafe.judges.compare.panels.marks import with_marks
from pytest_trainsafe.judges.compare.panels.set_marks import (
    is_about,
    marks_read,
    set_at,
    set_text,
)
from pytest_trainsafe.judges.compare.panels.state import begins_at
from pytest_trainsafe.report.called import called_at
from pytest_trainsafe.report.panels import Code
from pytest_trainsafe.report.source import code_at
from pytest_trainsafe.report.syntax import Function, parsed

#: The most places that are shown.
MOST_PLACES = 12

#: The most functions that are shown because the most telling line calls them, and the most lines
#: of all of them together, but for the first two.
MOST_CALLED, MOST_LINES = 6, 80

#: The titles of the most telling place, and of the functions that it calls.
FIRST, CALLED = "Source: look here first", "Source: a function that is called on the way"
CONSTRUCTOR = "Source: its constructor"
MARKED = "Source: where a mark is set"
STATE = "Source: what its object keeps"

#: Clauses whose line runs code that no other clause names: hooks, or what changes a buffer.
_CALLS = frozenset({"construction", "caller", "made"})
#: Clauses whose line sets up a module.
_SETS_UP = frozenset({"set up", "set up apart"})

#: The phases whose code reduces gradients.
_OF_REDUCTIONS = frozenset({"reduction", "weights", "norm", "accumulation"})
#: Those that a module's forward computes.
_FORWARD = frozenset({"activation", "decision", "forward"})


def source(
    located: Located | None, failing: Sequence[Finding], explained: bool, ran: Ran = UNKNOWN
) -> list[Code]:
    """The lines to look at, the most probable first.

    A module has those of its forward, or of its backward if it is wrong and the class defines one.
    The functions that the first place and the code at fault call follow them, those first whose
    results theirs are made of.
    The first module whose forward is wrong also has those of its constructor, which sets the
    numbers that the forward uses.  `explained` says that annotations are at fault, and no module.
    The note of each place is its clause of the description, and the first note also has the clauses
    whose places are not shown.  `ran` are the lines that are known to have run.
    """
    lead = lead_of(failing) if failing else None
    phase = phase_of(located, lead)
    methods = methods_of(phase)
    if located is not None and located.source:
        places = places_of(located, lead)
        first = FIRST
    elif lead is not None and lead.source and not explained:
        note = suspect(lead).removeprefix("module ")
        whose = "the module that uses" if lead.user else "the module of"
        whose = whose if lead.module_class else "what comes before"
        places, first = {lead.source: Clause(note)}, f"Source: {whose} the first wrong tensor"
    else:
        return []
    at_fault = "" if located is None else located.source
    pattern = lead.pattern if lead is not None else None
    scaled = pattern is not None and pattern.name in ("scaled", "clip factor")
    summed = pattern is not None and pattern.name in ("scaled", "partial sum")
    made: list[Code] = []
    beside: dict[int, list[Code]] = {}
    said, unsaid = set(), []
    for place, clause in places.items():
        if ran.line(place) is False:
            continue
        title = "Source: look here too" if made else first
        code = code_at(place, title, clause.beside(place), methods)
        if code is None or any(_has(shown, code) for shown in made) or len(made) >= MOST_PLACES:
            unsaid.append(clause)
            continue
        code = with_marks(
            code,
            place,
            places,
            scales=scaled and phase in _OF_REDUCTIONS,
            reduces=summed and phase in _OF_REDUCTIONS,
            set_up=clause.kind in _SETS_UP,
            ran=ran,
        )
        made.append(code)
        said.add(clause)
        more = beside.setdefault(len(made) - 1, [])
        if len(made) == 1 or place == at_fault or clause.kind in _CALLS:
            more += _called(code, place, methods[0], ran)
        if summed and phase in _OF_REDUCTIONS:
            more += _set_marks(code, place, lead, ran)
        if len(made) == 1 and (begins := begins_at(place.rpartition(":")[0], code.marked)):
            more += _first_value(place, begins)
        if phase in _FORWARD and (located is None or place == located.source):
            constructor = code_at(place, CONSTRUCTOR, str(clause), ("__init__",))
            if constructor is not None and _defined(constructor) and not _has(code, constructor):
                more.append(with_marks(constructor, place, ()))
    shown = _in_order(made, beside)
    placeless = [] if located is None else [c for c in located.clauses[1:] if not c.lines]
    left = [str(clause) for clause in dict.fromkeys((*placeless, *unsaid)) if clause not in said]
    if shown and left:
        note = "; ".join(filter(None, (shown[0].note, *left)))
        shown[0] = msgspec.structs.replace(shown[0], note=note)
    return shown


def _first_value(place: str, line: int) -> list[Code]:
    """The line of a constructor that begins what the object of the method at a place keeps."""
    at = f"{place.rpartition(':')[0]}:{line}"
    code = code_at(at, STATE, "first value of what the object keeps from call to call")
    return [] if code is None else [with_marks(code, at, ())]


def _in_order(made: Sequence[Code], beside: Mapping[int, Sequence[Code]]) -> list[Code]:
    """The places with what stands beside them, the nearest to the wrong tensor first.

    What the first place calls follows it.  What a later one calls lies between the first place and
    it, and precedes it.
    """
    shown: list[Code] = []
    room = MOST_PLACES - len(made)
    for number, code in enumerate(made):
        shown += [code] if number == 0 else []
        for each in beside.get(number, ()):
            of_another = any(_has(each, other) for other in made if other is not code)
            if room > 0 and not of_another and not any(_has(x, each) for x in (*shown, *made)):
                shown.append(each)
                room -= 1
        shown += [code] if number else []
    return shown


def _set_marks(code: Code, place: str, lead: Finding | None, ran: Ran) -> list[Code]:
    """The lines that set the marks of parameters on which the reduction at a place depends.

    Those are one in the file that defines the class of the wrong parameter `lead`, one in a
    function about its module, by name, the outermost call, and the line that sets the mark.
    """
    path = place.rpartition(":")[0]
    source = lead.source if lead is not None else ""
    words = "" if lead is None or lead.where is None else lead.where.module
    module = next((each for each in reversed(words.split(".")) if not each.isdecimal()), "")
    files = {line.rpartition(":")[0] for line in (*ran.lines, source) if line}
    own = source.rpartition(":")[0]
    shown: list[Code] = []
    for line in code.also:
        for name in marks_read(path, line):
            lines = [at for at in set_at(name, path, files) if ran.line(at) is not False]
            near = [each for each in lines if own and each.startswith(f"{own}:")]
            about = [each for each in lines if module and is_about(each, module)]
            for at in dict.fromkeys([*near[:1], *about[:1], *lines[-1:], *lines[:1]]):
                panel = code_at(at, MARKED, set_text(name, at, () if shown else lines))
                if panel is not None and not _has(code, panel):
                    shown.append(panel)
    return shown


def _called(code: Code, place: str, method: str, ran: Ran) -> list[Code]:
    """The functions of the program that a place calls, or that the function there calls.

    Those that the lines call that take part beside the place follow.  A function that is called in
    a branch that did not run is left out.
    """
    path = place.rpartition(":")[0]
    whole = code.marked in _functions(path)
    called: dict[str, str] = {}
    for line in (code.marked, *(() if whole else code.also)):
        for each, caller in called_at(f"{path}:{line}", method).items():
            called.setdefault(each, caller)
    found: list[Code] = []
    # The lines that did not run, and those of functions that only these call.
    idle = {f"{path}:{line}" for line in code.idle}
    for each, caller in called.items():
        if caller in idle or ran.line(caller) is False:
            idle |= _lines_of(each)
            continue
        shown = code_at(each, CALLED, f"called by {relative(caller)}")
        if shown is None or len(found) >= MOST_CALLED:
            continue
        if len(found) < 2 or sum(len(x.lines) for x in (*found, shown)) <= MOST_LINES:
            found.append(with_marks(shown, each, (), ran=ran))
    return found


def _lines_of(place: str) -> set[str]:
    """Each "file:line" of the function that begins at a place."""
    path, _, line = place.rpartition(":")
    nodes = (node for node in ast.walk(parsed(path)) if isinstance(node, Function))
    function = next((node for node in nodes if node.lineno == int(line)), None)
    last = int(line) if function is None else function.end_lineno or int(line)
    return {f"{path}:{each}" for each in range(int(line), last + 1)}


def _functions(path: str) -> set[int]:
    return {node.lineno for node in ast.walk(parsed(path)) if isinstance(node, Function)}


def _defined(constructor: Code) -> bool:
    """Whether the class defines its own constructor; else the lines are those of the class."""
    return "def __init__" in constructor.lines[constructor.marked - constructor.first]


def _has(shown: Code, code: Code) -> bool:
    """Whether the marked line of `code` is among the lines that `shown` has."""
    same = shown.file.rpartition(":")[0] == code.file.rpartition(":")[0]
    return same and shown.first <= code.marked < shown.first + len(shown.lines)
