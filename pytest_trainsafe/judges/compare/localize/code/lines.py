"""Lines of programs, and the clauses that name them beside the code at fault.

Called by `judges.compare.localize.code.places` and `judges.compare.localize.description`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from pytest_trainsafe.core.code_files import is_fixture, is_installed, relative
from pytest_trainsafe.judges.compare.explain.groups import over
from pytest_trainsafe.judges.compare.fault.clause import Clause, at, listed
from pytest_trainsafe.report.source import assigned_at
from pytest_trainsafe.sweep.program import Program
from pytest_trainsafe.trace.facts import (
    Caller,
    Changed,
    CollectiveEvent,
    Made,
    MadeWhat,
    Reduction,
    SetUp,
    Site,
)
from pytest_trainsafe.trace.reader import RankTrace, Trace
from pytest_trainsafe.trace.schema import TensorEvent


@dataclass(frozen=True, slots=True)
class Place:
    """A source line, "file:line", and clauses that describe it; false and empty for none."""

    source: str = ""
    clauses: tuple[Clause, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.source)

    def and_also(self, *more: Clause) -> Place:
        """The same place with more clauses."""
        return Place(self.source, (*self.clauses, *more))


NOWHERE = Place()

_UNWAITED = Clause(
    "the call is asynchronous (async_op=True), so its result must not be used before a wait: the "
    "assertion assert_schedule_independent finds a missing wait",
    kind="unwaited",
)

#: Of the lines that the loss is computed from, at most so many are named beside the last one.
_MOST_OF_LOSS = 2
#: Of the collectives that the loss is computed with, at most so many are named.
_MOST_OF_LOSS_CALLS = 4
#: Of the functions that an optimizer's step calls, or that a module has, at most so many are named.
_MOST_CALLED = 4


def set_up(candidate: Trace, module: str, source: str) -> list[Clause]:
    """The clause on the line that put a module into its place, if its code is at `source`.

    If a constructor of the program did, it is the line in it, with the line that led there.
    """
    placed = (each for rank in candidate.ranks for each in rank.events_of(SetUp))
    found = next((each for each in placed if each.module == module), None)
    if found is None:
        return []
    words = f"{module} is set up"
    if is_apart(found.inside, source):
        led = found.at if own(found.at) and found.at != found.inside else ""
        return [at(words, found.inside, kind="set up").called_at(led)]
    return [at(words, found.at, kind="set up")] if is_apart(found.at, source) else []


def set_up_at(candidate: Trace, module: str) -> str:
    """The user's line that puts a module into its place; "" if it is not known."""
    placed = (each for rank in candidate.ranks for each in rank.events_of(SetUp))
    lines = next(((each.inside, each.at) for each in placed if each.module == module), ())
    return next((line for line in lines if own(line)), "")


def constructed(candidate: Trace, module: str, source: str) -> list[Clause]:
    """The clause on the user's line that constructs a module whose own class is at `source`.

    It is a line in the constructor of the module around it, if the user wrote that.
    """
    placed = (each for rank in candidate.ranks for each in rank.events_of(SetUp))
    lines = next(((each.inside, each.at) for each in placed if each.module == module), ())
    line = next((line for line in lines if own(line) and line != source), "")
    return [at(f"{module} is set up", line, kind="set up")] if line else []


def made(candidate: Trace, what: MadeWhat, name: str) -> str:
    """The line that made a tensor, as its event `Made` has it; "" if it is not known."""
    events = (each for rank in candidate.ranks for each in rank.events_of(Made))
    return next((each.at for each in events if (each.what, each.name) == (what, name)), "")


def calls(candidate: Trace, module: str, source: str) -> list[Clause]:
    """The clause on a line that calls a module for `module`, whose code is at `source`.

    If there is none, clauses on the functions that `module` has as attributes, which may call one.
    """
    found = (each for rank in candidate.ranks for each in rank.events_of(Caller))
    for call in found:
        if call.by == module and is_apart(call.at, source):
            return [at(f"{call.module} is called", call.at, kind="call")]
    return _held(candidate, module, source)


def _held(candidate: Trace, module: str, source: str) -> list[Clause]:
    """Clauses on the functions of other files that a module has as attributes."""
    events = (rank.modules[module] for rank in candidate.ranks if module in rank.modules)
    return [
        at(f"its {name} is defined", line)
        for name, line in next((event.functions for event in events), ())[:_MOST_CALLED]
        if is_apart(line, source)
    ]


def of_loss(candidate: Trace, start: Place, agreed: str = "") -> Place:
    """The user's line that makes the loss, and what it does; `start` if it is not known.

    `start` is the line that starts the backward.  If that line itself also computes the loss,
    such as `(loss * scale).backward()`, it is the line before that, and the description has both.
    But if the loss that the line `agreed` records agrees, it is the first line after that one.
    The collectives with which the loss is computed follow.
    """
    backward = start.source
    events = (each for rank in candidate.ranks for each in rank.events_of(Made))
    found = next((each for each in events if each.what == "loss"), None)
    lines = [] if found is None else [line for line in (found.at, *found.of) if own(line)]
    with_calls = collectives_of_loss(candidate)
    if not lines:
        return start.and_also(*with_calls)
    if later := [line for line in lines if follows(line, agreed)]:
        line, others = later[-1], [line for line in lines if line != later[-1]]
    else:
        line, *others = [line for line in lines if line != backward] or lines
    ends = " and starts the backward" if line == backward else ""
    clauses = [_makes_the_loss(others[:_MOST_OF_LOSS], ends)]
    if line != backward:
        clauses.append(at("the backward starts", backward))
    return Place(line, (*clauses, *with_calls))


def _makes_the_loss(others: list[str], ends: str) -> Clause:
    """The clause on a line that makes the loss from what is computed at `others`, and then `ends`.

    Beside each of these it says what is computed there.
    """
    if not others:
        return Clause(f"makes the loss{ends}")
    names = " and ".join(map(relative, others))
    beside = "the loss is made from what is computed here"
    text = f"makes the loss from what is computed at {names}{ends}"
    return Clause(text, tuple((line, beside) for line in others), "made")


def of_reported(place: Place) -> Place:
    """The line that makes the loss that a line reports; `place` if that names no variable."""
    line = assigned_at(place.source, "loss")
    if not line:
        return place
    reports = f"makes the loss, which {relative(place.source)} reports"
    return Place(line, (Clause(reports, ((place.source, reports),)),))


def follows(line: str, other: str) -> bool:
    """Whether a line stands below another one in the same file."""
    file, _, number = line.rpartition(":")
    return file == other.rpartition(":")[0] and int(number) > int(other.rpartition(":")[2])


def step_of(stepper: Site, sites: Iterable[Site]) -> Clause:
    """The clause on the step of an optimizer of the project's own, and the functions it runs."""
    name = f"{stepper.name}.step"
    defined = at(f"{name} is defined", stepper.at)
    called = [
        (each.name, each.at) for each in sites if each.what == "steps" and each.at != stepper.at
    ][:_MOST_CALLED]
    if not called:
        return defined
    whole, runs = listed(f"{defined}, which runs", called), listed(f"{name} runs", called)
    return Clause(whole.text, (*defined.lines, *runs.lines))


def collectives_of_loss(candidate: Trace) -> list[Clause]:
    """The clause on the collectives between the model and the loss, if there are any."""
    items = [(f"{call} over {axes}", line) for call, axes, line in calls_of_loss(candidate)]
    return [listed("the loss is computed with", items, by=", ")] if items else []


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
            axes = over(candidate.point, event.ranks)
            if axes and not event.backward and event.peer is None:
                calls[str(event), axes, event.user or event.site] = None
    return [*calls][:_MOST_OF_LOSS_CALLS]


def _has_loss(rank: RankTrace) -> bool:
    return any(id.kind == "loss" for id in rank.tensors)


def is_apart(line: str, source: str) -> bool:
    """Whether a line is the user's, and in another file than `source`."""
    return own(line) and line.rpartition(":")[0] != source.rpartition(":")[0]


def own(line: str) -> bool:
    """Whether a line is the user's, and not an installed package's or this package's loop's."""
    return bool(line) and not (is_installed(line) or is_fixture(line))


def through(site: Site, does: str) -> Clause:
    """The clause that a line of the user's does something: perhaps through a line of a package."""
    if not site.user or site.at == site.user:
        return Clause(does)
    text = f"{does}, through {relative(site.at)}"
    return Clause(text, ((site.at, text),))


def caller_of(line: Changed) -> list[Clause]:
    """The clause on what calls the function that a line changing values is in, if it is known."""
    if not line.caller:
        return []
    text = f"called at {relative(line.caller)}"
    return [Clause(text, ((line.caller, f"leads to {relative(line.at)}"),), "caller")]


def unwaited(made: Reduction) -> list[Clause]:
    """The clause on an asynchronous reduction, whose result may be used too early."""
    return [_UNWAITED] if made.asynchronous else []


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
    return {site for site in sites if site.what in ("write", "clear", "early")}


def has_whole_steps_only(trace: Trace) -> bool:
    """Whether the program marked no micro-batch, so that only whole steps were recorded."""
    return not any(step.microbatches for rank in trace.ranks for step in rank.steps)
