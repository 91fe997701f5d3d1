"""Says which parameters no optimizer holds, and why a parameter did not move.

An average of the weights or a teacher is held by no optimizer: the program's own code changes it.
Reads the events `Unheld`, which every rank writes whose optimizers hold nothing unknown.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable

import msgspec

from pytest_trainsafe.core.finding import Finding
from pytest_trainsafe.core.tensor_id import TensorId
from pytest_trainsafe.judges.compare.comparison import Comparison
from pytest_trainsafe.judges.compare.rung import RungTraces
from pytest_trainsafe.trace.facts import Unheld
from pytest_trainsafe.trace.reader import Trace


def unheld(trace: Trace) -> frozenset[str] | None:
    """The parameters that no rank's optimizer holds; None if that is not known of every rank.

    Ranks that shard the state of an optimizer hold different parameters of it.
    """
    without: set[str] = set()
    held: set[str] = set()
    for rank in trace.ranks:
        events = rank.events_of(Unheld)
        if not events:
            return None
        own = {name for event in events for name in event.parameters}
        without |= own
        held |= {id.path for id in rank.tensors if id.kind == "param"} - own
    return frozenset(without - held)


def unheld_in_both(candidate: Trace, reference: Trace | None) -> frozenset[str]:
    """The parameters of which it is known that no optimizer of either Run holds them."""
    if reference is None:
        return frozenset()
    return (unheld(candidate) or frozenset()) & (unheld(reference) or frozenset())


def untrained(rung: RungTraces, wrong: Iterable[TensorId]) -> list[str]:
    """The parameters of `wrong` tensors that an optimizer of the reference alone holds.

    A norm without their gradients, by which gradients are clipped, makes all others wrong.
    """
    here, there = unheld(rung.candidate), unheld(rung.reference)
    if here is None or there is None:
        return []
    return list(dict.fromkeys(p for id in wrong if (p := parameter_of(id)) in here - there))


def parameter_of(id: TensorId) -> str:
    """The path of the parameter that a tensor belongs to, without the name of a state."""
    if id.kind != "optimizer_state":
        return id.path
    leaf = id.name.split(".")[0]
    return f"{id.module}.{leaf}" if id.module else leaf


def keeps_no_state(rung: RungTraces, names: Collection[str]) -> bool:
    """Whether the candidate's optimizers keep no state of these parameters, unlike the reference's.

    A parameter that a step leaves out has none.  A state that has not the parameter's shape, such
    as the factors of Adafactor, is not recorded, but noted.
    """
    noted = [text for rank in rung.candidate.ranks for text in rank.note("not_compared")]
    if any(f" of {name} does not have " in text for name in names for text in noted):
        return False
    wanted = {*names}
    states = (
        {parameter_of(id) for id in trace.ids() if id.kind == "optimizer_state"}
        for trace in (rung.candidate, rung.reference)
    )
    here, there = states
    return wanted <= there and not wanted & here


def received_alone(rung: RungTraces, names: Collection[str]) -> str:
    """The clause that the candidate's optimizer alone receives gradients of these; "" if not.

    It does in a step in which the reference's optimizer receives those of other parameters.
    """
    steps: list[set[tuple[int, str]]] = [
        {(id.step, id.path) for id in trace.ids() if id.kind == "main_grad"}
        for trace in (rung.candidate, rung.reference)
    ]
    ours, theirs = steps
    alone = {(step, path) for step, path in ours - theirs if step in {each for each, _ in theirs}}
    if not {*names} <= {path for _, path in alone}:
        return ""
    them = "it" if len(names) == 1 else "them"
    return f"; it receives a gradient of {them} in a step in which the reference's receives none"


def with_known_holders(rung: RungTraces, comparison: Comparison) -> Comparison:
    """A copy of a comparison that says of parameters that did not move what is known of them.

    It is whether an optimizer holds them, and whether their gradients agree.  Those that no
    optimizer holds are not said to have another weight decay.  Returns the comparison itself if
    nothing is known.
    """
    here, there = unheld(rung.candidate), unheld(rung.reference)
    if here is None or there is None:
        return comparison

    def known(finding: Finding) -> Finding:
        pattern, where = finding.pattern, finding.where
        if pattern is None or where is None or where.kind != "update":
            return finding
        if pattern.name == "decay" and where.path in here & there:
            cause = (
                "no watched optimizer holds the parameter: the program's own code that changes it "
                "keeps another share of its values"
            )
        elif pattern.name == "zero":
            cause = _why_unmoved(rung, comparison, where, here, there)
        else:
            return finding
        pattern = msgspec.structs.replace(pattern, cause=cause)
        return msgspec.structs.replace(finding, pattern=pattern)

    return dataclasses.replace(comparison, findings=[known(each) for each in comparison.findings])


def _why_unmoved(
    rung: RungTraces,
    comparison: Comparison,
    id: TensorId,
    here: frozenset[str],
    there: frozenset[str],
) -> str:
    """What is known of a parameter that did not move, unlike in the reference.

    `here` and `there` are the parameters that no optimizer holds in the candidate and the
    reference.
    """
    if id.path in here & there:
        return (
            "no watched optimizer holds the parameter: the program's own code that changes it does "
            "not run in this step, or reads values that have not changed yet"
        )
    if id.path in here:
        return "no watched optimizer holds the parameter, but one does in the reference"
    gradient = msgspec.structs.replace(id, kind="main_grad")
    if not rung.reference.holders(gradient):
        return "the optimizer holds the parameter, but its step does not change it"
    if not rung.candidate.holders(gradient):
        if any(other.kind == "main_grad" for other in rung.candidate.ids()):
            return "the optimizer holds the parameter, but gets no gradient of it"
        return "the optimizer holds the parameter, but no gradient that it receives was recorded"
    doubtful = {finding.where for finding in comparison.findings} | {*comparison.suspects}
    if gradient in doubtful:
        return "the optimizer holds the parameter, but its step does not change it"
    if keeps_no_state(rung, {id.path}):
        return (
            "the optimizer holds the parameter and its gradient agrees, but it keeps no state of "
            "it, unlike in the reference: the step leaves the parameter out"
        )
    return (
        "the optimizer holds the parameter and its gradient agrees, but the step does not change it"
    )
