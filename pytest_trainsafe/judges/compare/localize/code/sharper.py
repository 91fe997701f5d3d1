"""Clauses on recorded facts that make a line beside the code at fault the more suspect one.

Called by `judges.compare.localize.description`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from pytest_trainsafe.core.code_files import relative
from pytest_trainsafe.core.finding import Finding
from pytest_trainsafe.judges.compare.comparison import Comparison
from pytest_trainsafe.judges.compare.explain.groups import over
from pytest_trainsafe.judges.compare.fault.clause import Clause, at
from pytest_trainsafe.judges.compare.localize.blame import PROGRAM, Fault
from pytest_trainsafe.judges.compare.localize.code.lines import calls_of_loss, set_up_at
from pytest_trainsafe.trace.facts import Applied, CollectiveEvent
from pytest_trainsafe.trace.reader import RankTrace, Trace
from pytest_trainsafe.trace.schema import ModuleEvent

#: The patterns that say how a reduction is wrong, so that no other reason is looked for.
_OF_SUMS = frozenset({"scaled", "partial sum"})

_NO_AXIS = "no single axis"


def sharper(
    candidate: Trace,
    modules: Mapping[str, ModuleEvent],
    group: Sequence[Fault],
    comparison: Comparison,
    outputs: Collection[str],
) -> list[Clause]:
    """Clauses beside the code of a group of faults; none if no recorded fact points elsewhere.

    `outputs` are the modules whose outputs were compared.
    """
    fault = group[0]
    if fault.condition or fault.uncalled or fault.handed is not None:
        return []
    if fault.target == PROGRAM:
        return _odd_call(candidate) if fault.phase in ("backward", "loss") else []
    match fault.phase:
        case "forward":
            return _alike(candidate, modules, group, comparison, outputs)
        case "backward":
            return _unused(candidate, fault.target, comparison)
    return []


def of_no_axis(axis: str, candidate: Trace, fault: Fault) -> str:
    """The text on the axis of a fault; if it is none, with the call over another axis."""
    odd = _odd(candidate) if fault.target == PROGRAM and axis.startswith(_NO_AXIS) else None
    if odd is None:
        return axis
    call, wrong, right, line = odd
    made = f"the loss is computed with {call} over {wrong} at {relative(line)}"
    return f"{axis}; {made}, between calls over {right}"


def explained(comparison: Comparison) -> bool:
    """Whether a pattern says how a reduction is wrong: by a factor, or because a sum is missing."""
    failing = (f.pattern for f in comparison.findings if f.verdict == "fail" and f.pattern)
    return any(pattern.name in _OF_SUMS for pattern in failing)


def entered(fault: Fault, failing: Iterable[Finding]) -> str:
    """A clause on the first wrong output if a submodule makes it, whose input is wrong then.

    `failing` are findings in dataflow order.
    """
    first = next((each.where for each in failing if each.where is not None), None)
    if fault.phase != "forward" or first is None or first.kind != "activation":
        return ""
    around = f"{fault.target}." if fault.target else ""
    inside = first.module != fault.target and first.module.startswith(around)
    return f", which is the input of {first.module}" if inside else ""


def _alike(
    candidate: Trace,
    modules: Mapping[str, ModuleEvent],
    group: Sequence[Fault],
    comparison: Comparison,
    outputs: Collection[str],
) -> list[Clause]:
    """The clause that clears a class: its other modules agree, so what these are given is suspect.

    None if no line is known that sets up the first of the group.
    """
    own = modules.get(group[0].target)
    line = set_up_at(candidate, group[0].target)
    if own is None or not line:
        return []
    wrong = {fault.target for fault in group}
    for finding in comparison.findings:
        if finding.verdict == "fail" and finding.where is not None:
            wrong.add(finding.where.module)
    others = [
        name
        for name, each in modules.items()
        if each.source and each.source == own.source and name not in wrong and name in outputs
    ]
    if not others:
        return []
    these = "this one is" if len(group) == 1 else "these are"
    more = f" and {len(others) - 1} more" if len(others) > 1 else ""
    agree = f"{others[0]}{more} of the same class agree{'' if more else 's'}"
    words = f"{agree}, so look at what {these} set up with"
    return [at(words, line, by=", at ", kind="set up apart")]


def without_idle(
    candidate: Trace, clauses: Sequence[Clause], stays: Collection[str]
) -> tuple[Clause, ...]:
    """The clauses, without those on backwards that only communicate over axes in `stays`.

    The fault occurs without these axes too, where such a function has nothing to communicate.
    """
    idle = _over_only(candidate, stays)
    return tuple(
        clause
        for clause in clauses
        if clause.kind != "backward" or not idle.issuperset(line for line, _ in clause.lines)
    )


def _over_only(candidate: Trace, axes: Collection[str]) -> frozenset[str]:
    """The backwards of autograd functions all of whose collectives run along one of `axes`."""
    along: set[str] = set()
    others: set[str] = set()
    for rank in candidate.ranks:
        every = _begins(rank)
        for event in rank.events_of(CollectiveEvent):
            if not event.backward:
                continue
            # The ranks of ep are some of dp and cp, which exchange tokens over it alone.
            exchanges = "ep" in axes and event.op.startswith("all_to_all")
            between = candidate.point.axes_between(event.ranks)
            own = exchanges or (bool(between) and {*between} <= {*axes})
            lines = (event.caller, event.user, event.site)
            (along if own else others).update(_function_of(line, every) for line in lines if line)
    return frozenset(along - others - {""})


def _unused(candidate: Trace, module: str, comparison: Comparison) -> list[Clause]:
    """The clause on a sum that a module's backward calls, although its gradients are not summed."""
    axes = {
        finding.pattern.axis
        for finding in comparison.findings
        if finding.verdict == "fail" and finding.pattern is not None
        if finding.pattern.name == "partial sum"
        if finding.where is not None and finding.where.kind == "activation_grad"
    }
    for rank in candidate.ranks:
        every = _begins(rank)
        own = {each.backward for each in rank.events_of(Applied) if each.module == module}
        for event in rank.events_of(CollectiveEvent):
            axis = over(candidate.point, event.ranks)
            if not event.backward or not event.reduce or axis not in axes:
                continue
            for line in (event.caller, event.user, event.site):
                if _function_of(line, every) in own:
                    words = f"{event} over {axis} is called in it"
                    return [at(words, line, more=", so its result may not be what is returned")]
    return []


def _begins(rank: RankTrace) -> set[str]:
    """The lines at which methods of autograd functions begin, also forwards that are recomputed."""
    return {line for each in rank.events_of(Applied) for line in (each.forward, each.backward)}


def _function_of(line: str, begins: Iterable[str]) -> str:
    """The nearest of some lines above `line` in its file; "" if there is none."""
    file, _, number = line.rpartition(":")
    above = [
        int(each.rpartition(":")[2])
        for each in begins
        if each and each.rpartition(":")[0] == file
        if int(each.rpartition(":")[2]) <= int(number or 0)
    ]
    return f"{file}:{max(above)}" if above else ""


def _odd(candidate: Trace) -> tuple[str, str, str, str] | None:
    """Of the calls that make the loss, one over another axis than the calls around it.

    It is the call, its axis, the axis of those around it, and the line.
    """
    made = calls_of_loss(candidate)
    for before, call, after in zip(made, made[1:], made[2:], strict=False):
        if before[1] == after[1] != call[1]:
            return call[0], call[1], before[1], call[2]
    return None


def _odd_call(candidate: Trace) -> list[Clause]:
    odd = _odd(candidate)
    if odd is None:
        return []
    call, wrong, right, line = odd
    words, between = f"{call} over {wrong} is called", f", between calls over {right}"
    return [at(words, line, more=between, kind="odd call")]
