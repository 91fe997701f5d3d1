"""Lines of programs, and the clauses that name them beside the code at fault.

Called by `judges.compare.localize.code.places` and `judges.compare.localize.description`.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from pytest_trainsafe.core.code_files import is_fixture, is_installed, relative
from pytest_trainsafe.judges.compare.explain.groups import over
from pytest_trainsafe.report.source import assigned_at
from pytest_trainsafe.sweep.program import Program
from pytest_trainsafe.trace.facts import (
    Caller,
    CollectiveEvent,
    Made,
    MadeWhat,
    Reduction,
    SetUp,
    Site,
)
from pytest_trainsafe.trace.reader import RankTrace, Trace
from pytest_trainsafe.trace.schema import TensorEvent

#: A source line and its description: "file:line" and a phrase; both "" for none.
Place = tuple[str, str]
NOWHERE: Place = ("", "")

#: The clause on an asynchronous reduction.
UNWAITED = (
    "; the call is asynchronous (async_op=True), so its result must not be used before a wait: the "
    "assertion assert_schedule_independent finds a missing wait"
)

#: Of the lines that the loss is computed from, at most so many are named beside the last one.
_MOST_OF_LOSS = 2
#: Of the collectives that the loss is computed with, at most so many are named.
_MOST_OF_LOSS_CALLS = 4
#: Of the functions that an optimizer's step calls, or that a module has, at most so many are named.
_MOST_CALLED = 4


def set_up(candidate: Trace, module: str, source: str) -> str:
    """A clause on the line that put a module into its place, if its code is at `source`.

    If a constructor of the program did, it is the line in it, with the line that led there.
    """
    placed = (each for rank in candidate.ranks for each in rank.events_of(SetUp))
    found = next((each for each in placed if each.module == module), None)
    if found is None:
        return ""
    led = f", called at {relative(found.at)}" if own(found.at) and found.at != found.inside else ""
    inside = apart(f"; {module} is set up at {relative(found.inside)}{led}", found.inside, source)
    return inside or apart(f"; {module} is set up at {relative(found.at)}", found.at, source)


def set_up_at(candidate: Trace, module: str) -> str:
    """The user's line that puts a module into its place; "" if it is not known."""
    placed = (each for rank in candidate.ranks for each in rank.events_of(SetUp))
    lines = next(((each.inside, each.at) for each in placed if each.module == module), ())
    return next((line for line in lines if own(line)), "")


def constructed(candidate: Trace, module: str, source: str) -> str:
    """A clause on the user's line that constructs a module whose own class is at `source`.

    It is a line in the constructor of the module around it, if the user wrote that.
    """
    placed = (each for rank in candidate.ranks for each in rank.events_of(SetUp))
    lines = next(((each.inside, each.at) for each in placed if each.module == module), ())
    line = next((line for line in lines if own(line) and line != source), "")
    return f"; {module} is set up at {relative(line)}" if line else ""


def made(candidate: Trace, what: MadeWhat, name: str) -> str:
    """The line that made a tensor, as its event `Made` has it; "" if it is not known."""
    events = (each for rank in candidate.ranks for each in rank.events_of(Made))
    return next((each.at for each in events if (each.what, each.name) == (what, name)), "")


def calls(candidate: Trace, module: str, source: str) -> str:
    """A clause on a line that calls a module for `module`, whose code is at `source`.

    If there is none, it is on the functions that `module` has as attributes, which may call one.
    """
    found = (each for rank in candidate.ranks for each in rank.events_of(Caller))
    for call in found:
        clause = apart(f"; {call.module} is called at {relative(call.at)}", call.at, source)
        if call.by == module and clause:
            return clause
    return _held(candidate, module, source)


def _held(candidate: Trace, module: str, source: str) -> str:
    """A clause on the functions of other files that a module has as attributes."""
    events = (rank.modules[module] for rank in candidate.ranks if module in rank.modules)
    return "".join(
        apart(f"; its {name} is defined at {relative(line)}", line, source)
        for name, line in next((event.functions for event in events), ())[:_MOST_CALLED]
    )


def of_loss(candidate: Trace, start: Place, agreed: str = "") -> Place:
    """The user's line that makes the loss, and what it does; `start` if it is not known.

    `start` is the line that starts the backward.  If that line itself also computes the loss,
    such as `(loss * scale).backward()`, it is the line before that, and the description has both.
    But if the loss that the line `agreed` records agrees, it is the first line after that one.
    """
    backward, _ = start
    events = (each for rank in candidate.ranks for each in rank.events_of(Made))
    found = next((each for each in events if each.what == "loss"), None)
    lines = [] if found is None else [line for line in (found.at, *found.of) if own(line)]
    if not lines:
        return start
    if later := [line for line in lines if follows(line, agreed)]:
        line, others = later[-1], [line for line in lines if line != later[-1]]
    else:
        line, *others = [line for line in lines if line != backward] or lines
    what = "makes the loss"
    if others:
        names = " and ".join(map(relative, others[:_MOST_OF_LOSS]))
        what += f" from what is computed at {names}"
    if line == backward:
        return line, f"{what} and starts the backward"
    return line, f"{what}; the backward starts at {relative(backward)}"


def of_reported(place: Place) -> Place:
    """The line that makes the loss that a line reports; `place` if that names no variable."""
    line = assigned_at(place[0], "loss")
    return (line, f"makes the loss, which {relative(place[0])} reports") if line else place


def follows(line: str, other: str) -> bool:
    """Whether a line stands below another one in the same file."""
    file, _, number = line.rpartition(":")
    return file == other.rpartition(":")[0] and int(number) > int(other.rpartition(":")[2])


def called_by(stepper: Site, sites: Iterable[Site]) -> str:
    """A clause on the project's functions that the step of an optimizer of its own runs."""
    called = [site for site in sites if site.what == "steps" and site.at != stepper.at]
    named = [f"{each.name} at {relative(each.at)}" for each in called[:_MOST_CALLED]]
    return f", which runs {' and '.join(named)}" if named else ""


def collectives_of_loss(candidate: Trace) -> str:
    """A clause on the collectives between the model and the loss; "" if there are none."""
    listed = [f"{call} over {axes} at {at}" for call, axes, at in calls_of_loss(candidate)]
    return f"; the loss is computed with {', '.join(listed)}" if listed else ""


def calls_of_loss(candidate: Trace) -> list[tuple[str, str, str]]:
    """The collectives between the model and the loss: each call, its axes, and its line.

    They are the user's calls of the first rank that has a loss, in its first micro-batch that has
    one.  A loss may be reported after its backward: calls from there on are of the gradients.
    Calls in groups of one rank do nothing, and those to a peer move what stages compute.
    """
    calls: dict[tuple[str, str, str], None] = {}
    ended = False
    for event in next(filter(_has_loss, candidate.ranks), candidate.ranks[0]).events:
        if isinstance(event, TensorEvent):
            if event.id.kind == "loss":
                break
            if event.id.kind == "activation":
                calls.clear()
            ended = event.id.kind != "activation"
        elif isinstance(event, CollectiveEvent) and own(event.user or event.site) and not ended:
            at, axes = relative(event.user or event.site), over(candidate.point, event.ranks)
            if axes and not event.backward and event.peer is None:
                calls[str(event), axes, at] = None
    return [*calls][:_MOST_OF_LOSS_CALLS]


def _has_loss(rank: RankTrace) -> bool:
    return any(id.kind == "loss" for id in rank.tensors)


def apart(clause: str, line: str, source: str) -> str:
    """A clause that names `line`, if that is in another file than `source`; else ""."""
    file, other = line.rpartition(":")[0], source.rpartition(":")[0]
    return clause if own(line) and file != other else ""


def own(line: str) -> bool:
    """Whether a line is the user's, and not an installed package's or this package's loop's."""
    return bool(line) and not (is_installed(line) or is_fixture(line))


def through(site: Site) -> str:
    """Returns ", through FILE:LINE" if the user's code called a package that does the work.

    FILE:LINE is the line in the package.  Returns "" if the user's own line does the work.
    """
    return f", through {relative(site.at)}" if site.user and site.at != site.user else ""


def unwaited(made: Reduction) -> str:
    """A clause on an asynchronous reduction, whose result may be used too early; else ""."""
    if not made.asynchronous:
        return ""
    return UNWAITED


def program_line(program: Program) -> str:
    """The "file:line" of a program's function, or the path of a script; "" if neither is known."""
    if not program.file or is_fixture(program.file):
        return program.path if program.script is not None else ""
    function = program.path.rpartition(":")[2].rpartition(".")[2]
    lines = Path(program.file).read_text(encoding="utf-8").splitlines()
    found = (n for n, line in enumerate(lines, 1) if line.lstrip().startswith(f"def {function}("))
    return f"{program.file}:{next(found, 1)}"


def writes_of(trace: Trace) -> set[Site]:
    """The lines of a trace that change gradients in place, or clear them between backwards."""
    sites = (site for rank in trace.ranks for site in rank.events_of(Site))
    return {site for site in sites if site.what in ("write", "clear")}


def has_whole_steps_only(trace: Trace) -> bool:
    """Whether the program marked no micro-batch, so that only whole steps were recorded."""
    return not any(step.microbatches for rank in trace.ranks for step in rank.steps)
