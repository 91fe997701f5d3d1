"""Says whether a program sets gradients to zero between two steps, from its calls of `zero_grad`.

Called by `judges.compare.localize.description` for gradients that contain those of the previous
step.
"""

from __future__ import annotations

from collections.abc import Sequence

from pytest_trainsafe.core.code_files import relative
from pytest_trainsafe.core.usage import name_list, name_ranks
from pytest_trainsafe.judges.compare.fault.clause import Clause
from pytest_trainsafe.judges.compare.localize.code.lines import NOWHERE, Place
from pytest_trainsafe.trace.facts import Zeroed
from pytest_trainsafe.trace.reader import RankTrace, Trace


def not_cleared(candidate: Trace, step: int, names: Sequence[str], reference: Trace) -> str:
    """Why the gradients of the parameters `names` still contain those of the step before `step`."""
    calls = _calls(candidate)
    if not calls:
        line = _only_there(candidate, reference)
        there = f"; the reference calls it at {relative(line)}" if line else ""
        return f"no call of zero_grad was seen{there}"
    between = [each for each in calls if _is_between(each, step)]
    if not between:
        return (
            f"zero_grad is called {_moment(calls[-1])} at {_line(calls[-1])}, and not between step "
            f"{step - 1} and the backwards of step {step}"
        )
    silent, does = _silent(candidate, step, names)
    if silent:
        return (
            f"{_named(silent)} {'do' if len(silent) > 1 else 'does'} not clear them: zero_grad is "
            f"called between the steps on {_named(does)} alone, at {_lines(between)}"
        )
    # A rank that holds none of these parameters does not name them among those it leaves out.
    own = [call for rank in _holders(candidate, names) for call in _between(rank, step)]
    between = own or between
    # A parameter beyond those that an event names may be left out by it.
    missed = [
        name
        for name in names
        if all(name in each.kept or each.left > len(each.kept) for each in between)
    ]
    at = _lines(between)
    if missed:
        whose = "them" if len(missed) == len(names) else name_list(missed, "parameter")
        return f"zero_grad is called between the steps at {at}, but does not concern {whose}"
    return (
        f"zero_grad is called for them between the steps at {at}, so they are kept elsewhere than "
        "in `grad`, such as in a buffer that is accumulated or reduced"
    )


def of_clearing(
    candidate: Trace, reference: Trace | None, step: int = 0, names: Sequence[str] = ()
) -> Place:
    """The line that clears gradients in the reference alone, or on some ranks alone.

    The latter if other ranks hold the parameters `names` and do not clear them before `step`.
    NOWHERE if there is none.
    """
    line = _only_there(candidate, reference) if reference is not None else ""
    if line:
        return Place(line, (Clause("clears gradients in the reference alone"),))
    silent, does = _silent(candidate, step, names)
    if not silent or not does:
        return NOWHERE
    call = _between(does[0], step)[0]
    return Place(call.user or call.at, (Clause(f"clears gradients on {_named(does)} alone"),))


def _only_there(candidate: Trace, reference: Trace) -> str:
    """The line at which the reference calls zero_grad, if the candidate never does; else ""."""
    calls = _calls(reference)
    return "" if not calls or _calls(candidate) else calls[-1].user or calls[-1].at


def _calls(trace: Trace) -> list[Zeroed]:
    return [event for rank in trace.ranks for event in rank.events_of(Zeroed)]


def _holders(trace: Trace, names: Sequence[str]) -> list[RankTrace]:
    """The ranks that hold any of the parameters `names`."""
    wanted = {*names}
    return [
        rank
        for rank in trace.ranks
        if any(id.kind == "param" and id.path in wanted for id in rank.tensors)
    ]


def _silent(
    trace: Trace, step: int, names: Sequence[str]
) -> tuple[list[RankTrace], list[RankTrace]]:
    """The ranks that hold any of `names` and do not clear gradients before `step`; those that do.

    The latter may hold none of `names`.
    """
    silent = [rank for rank in _holders(trace, names) if not _between(rank, step)]
    return silent, [rank for rank in trace.ranks if _between(rank, step)]


def _between(rank: RankTrace, step: int) -> list[Zeroed]:
    """The calls of a rank between the step before `step` and the backwards of `step`."""
    return [each for each in rank.events_of(Zeroed) if _is_between(each, step)]


def _named(ranks: Sequence[RankTrace]) -> str:
    return name_ranks([each.rank for each in ranks])


def _lines(calls: Sequence[Zeroed]) -> str:
    return " and ".join(dict.fromkeys(_line(each) for each in calls))


def _is_between(call: Zeroed, step: int) -> bool:
    return (call.step, call.moment) in ((step, "before"), (step - 1, "stepped"))


def _moment(call: Zeroed) -> str:
    if call.moment == "before":
        return f"before the backwards of step {call.step}"
    if call.moment == "backward":
        return f"between a backward and the optimizer's step in step {call.step}"
    return f"after the optimizer's step in step {call.step}"


def _line(call: Zeroed) -> str:
    return relative(call.user or call.at)
