"""Lets a wrong setup of a run lead the report of a failure that it causes.

A guard reports that dp ranks saw the same data, or that a step was skipped, and a note that a
parameter has no counterpart.  If the first wrong tensor is a consequence of that, its pattern is
replaced by one that names the setup.  Called by the ladder.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

import msgspec

from pytest_trainsafe.core.finding import Finding, Pattern
from pytest_trainsafe.core.tensor_id import TensorId
from pytest_trainsafe.judges.compare.comparison import Comparison
from pytest_trainsafe.judges.compare.explain.drawn import drawn
from pytest_trainsafe.judges.compare.explain.held import with_known_holders
from pytest_trainsafe.judges.compare.explain.loss_ratio import same_ratio
from pytest_trainsafe.judges.compare.explain.numbering import overnumbered
from pytest_trainsafe.judges.compare.guards.clip_limit import clip_limit
from pytest_trainsafe.judges.compare.guards.same_data import same_data_in_step, same_micro_batches
from pytest_trainsafe.judges.compare.guards.untied import untied
from pytest_trainsafe.judges.compare.guards.vacuity import SETUP, UNSEEN
from pytest_trainsafe.judges.compare.rung import RungTraces
from pytest_trainsafe.trace.reader import RankTrace, Trace

#: The names of the patterns made here, each with the check of the guard that it repeats.
_REPEATS = {"same data": "dp-inputs", "skipped step": "skipped-step"}

#: The kinds that a micro-batch's forward produces or receives.
_FORWARD = frozenset({"input", "activation", "decision", "loss"})

#: The kinds that an optimizer's step changes.
_STEPPED = frozenset({"param", "master_param", "update", "optimizer_state"})

Digests = tuple[str, ...]


def led_by_setup(rung: RungTraces, comparison: Comparison) -> Comparison:
    """A copy of a failed comparison whose first wrong tensor is explained by a wrong setup.

    If the setup does not explain this tensor, the copy only says more of parameters that did not
    move: what is known of the optimizer that holds them.  Micro-batches that the reference lacks
    are a finding of their own.
    """
    comparison = with_known_holders(rung, comparison)
    failing = [f for f in comparison.findings if f.verdict == "fail"]
    where = failing[0].where if failing else None
    if where is None:
        return comparison
    first = [finding for finding in failing if finding.where == where]
    lead = next((finding for finding in first if finding.pattern is not None), first[0])
    if (more := overnumbered(rung, lead, where)) is not None:
        return dataclasses.replace(comparison, findings=[more, *comparison.findings])
    pattern = (
        _same_data(rung, comparison, where)
        or same_data_in_step(rung, comparison, where)
        or same_micro_batches(rung, lead)
        or _skipped_step(rung, where)
        or untied(rung, lead)
        or drawn(rung, comparison, lead)
        or same_ratio(comparison, lead)
        or clip_limit(rung, lead)
    )
    if pattern is None:
        return comparison
    ours = pattern.name in _REPEATS
    if lead.pattern is not None and ours:
        text = f"{pattern.text}; {lead.pattern.text}"
        pattern = msgspec.structs.replace(pattern, text=text)
    led = msgspec.structs.replace(lead, pattern=pattern)
    if ours:
        led = msgspec.structs.replace(led, module_class="", source="", user="")
    findings = [led if finding is lead else finding for finding in comparison.findings]
    return dataclasses.replace(comparison, findings=findings)


def setup_hints(found: Sequence[Finding], comparison: Comparison) -> list[Finding]:
    """The guards' findings on the setup of a failed run that no pattern repeats."""
    if not comparison.failed:
        return []
    names = {f.pattern.name for f in comparison.findings if f.pattern is not None}
    repeated = {_REPEATS.get(name) for name in names}
    return [_as_hint(f) for f in found if f.check in SETUP and f.check not in repeated]


def _as_hint(finding: Finding) -> Finding:
    """A guard's finding without what it says of a test that passes."""
    if finding.check != "dp-inputs":
        return finding
    return msgspec.structs.replace(finding, message=finding.message.partition(UNSEEN)[0])


def _same_data(rung: RungTraces, comparison: Comparison, where: TensorId) -> Pattern | None:
    """The pattern of a micro-batch whose rank saw the data of another dp rank's micro-batch.

    None if the reference's two micro-batches have the same data too, or if the inputs of the
    micro-batch agree with the reference's.
    """
    if where.kind not in _FORWARD or where.microbatch is None or _agree(rung, comparison, where):
        return None
    due = _work(rung.reference, rung.reference.ranks[0], where.step)
    members = {*rung.candidate.sizes.mesh.members("dp")}
    for here, _ in rung.candidate.holders(where):
        mine = _work(rung.candidate, here, where.step).get(where.microbatch)
        for there, theirs in _others(rung.candidate, here, members, where.step):
            for number, digests in theirs.items():
                same = mine is not None and mine == digests
                if same and _differ(due.get(where.microbatch), due.get(number)):
                    return _of_same_data(here, there, members, where.microbatch, number)
    return None


def _agree(rung: RungTraces, comparison: Comparison, where: TensorId) -> bool:
    """Whether the inputs of the micro-batch of `where` were compared and all agree."""
    inputs = [
        id
        for id in rung.reference.ids()
        if (id.kind, id.step, id.microbatch) == ("input", where.step, where.microbatch)
    ]
    odd = {*comparison.unclear, *(id for _, id, _ in comparison.given)}
    return bool(inputs) and not odd & {*inputs}


def _work(trace: Trace, rank: RankTrace, step: int) -> dict[int, Digests]:
    """By micro-batch of a step, the hashes of a rank's inputs, or of its losses and gradients.

    The latter are taken if no rank recorded inputs, as if the model runs in a compiled region.
    """
    if any(other.inputs for other in trace.ranks):
        found: dict[int, Digests] = {}
        for event in rank.inputs:
            if event.step == step:
                digests = found.get(event.microbatch, ())
                found[event.microbatch] = (*digests, *event.hashes)
        return {number: digests for number, digests in found.items() if digests}
    results: dict[int, Digests] = {}
    for id, tensor in rank.tensors.items():
        if id.step == step and id.kind in ("loss", "param_grad") and id.microbatch is not None:
            results[id.microbatch] = (*results.get(id.microbatch, ()), tensor.hash)
    return results


def _others(
    trace: Trace, here: RankTrace, axes: set[str], step: int
) -> Iterator[tuple[RankTrace, dict[int, Digests]]]:
    """The ranks that differ from `here` only along `axes`, each with its work in a step."""
    for there in trace.ranks:
        apart = {a for a, at in here.coordinates.items() if there.coordinates[a] != at}
        if apart and apart <= axes:
            yield there, _work(trace, there, step)


def _differ(one: Digests | None, other: Digests | None) -> bool:
    return one is not None and other is not None and one != other


def _of_same_data(
    here: RankTrace, there: RankTrace, members: set[str], mine: int, other: int
) -> Pattern:
    apart = [
        axis
        for axis, at in here.coordinates.items()
        if axis in members and there.coordinates[axis] != at
    ]
    over = " and ".join(apart)
    ranks, numbers = sorted((here.rank, there.rank)), sorted((mine, other))
    text = (
        f"ranks {ranks[0]} and {ranks[1]} of {over} saw the same data: their micro-batches "
        f"{numbers[0]} and {numbers[1]} are equal, and those of the reference are not"
    )
    cause = (
        f"the program does not divide its data over {over}: check the sampler and how a batch is "
        "divided among the ranks, not the model"
    )
    axis = apart[0] if len(apart) == 1 else over
    short = f"ranks {ranks[0]} and {ranks[1]} of {over} see the same data"
    return Pattern("same data", text, axis, cause, short=short)


def _skipped_step(rung: RungTraces, where: TensorId) -> Pattern | None:
    """The pattern of a step that the candidate's optimizer skipped, unlike the reference's."""
    if where.kind not in _STEPPED:
        return None
    expected = {why for rank in rung.reference.ranks for why in rank.note("skipped")}
    for rank in rung.candidate.ranks:
        for why in rank.note("skipped"):
            if why.startswith(f"step {where.step}, ") and why not in expected:
                text = f"the candidate skipped an optimizer step, unlike the reference: {why}"
                cause = (
                    "the gradient scaler or engine that decides whether to skip a step decides "
                    "otherwise than in the reference: check its scale and its test for gradients "
                    "that are not finite, not the optimizer"
                )
                short = f"the optimizer skips step {where.step}"
                return Pattern("skipped step", text, cause=cause, short=short)
    return None
