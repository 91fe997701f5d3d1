"""Decides which differences between two Runs are causes, and which only follow from others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pytest_trainsafe.core.finding import StepSubject
from pytest_trainsafe.judges.replay.determinism.divergence import Divergence
from pytest_trainsafe.judges.replay.resume.beside import not_loaded
from pytest_trainsafe.judges.replay.resume.data import data_difference, epoch_difference
from pytest_trainsafe.judges.replay.resume.difference import Difference
from pytest_trainsafe.judges.replay.resume.later import is_updated, later_difference
from pytest_trainsafe.judges.replay.resume.state import state_differences
from pytest_trainsafe.judges.replay.resume.streams.find import StreamDifference, stream_differences
from pytest_trainsafe.trace.reader import Trace


def causes_of(
    found: Divergence, whole: Trace, saved: Trace, resumed: Trace, at_step: int, last: int
) -> list[Difference]:
    """The causes of the difference `found`, the first one between the results; at least one.

    `whole` is uninterrupted, `saved` saves a checkpoint after `at_step` of the `last` steps, and
    `resumed` continues from that checkpoint.
    """
    data = data_difference(whole, resumed)
    updated = is_updated(found)
    state = state_differences(whole, saved, resumed, at_step, updated=updated)
    sampler = None if data is None else epoch_difference(saved, resumed, data)
    # A loader's seed may decide the order, unless a sampler gave that of another epoch.
    seeds = data is not None and sampler is None
    streams = stream_differences(whole, saved, resumed, at_step, last, seeds=seeds)
    lost = [each.difference for each in streams if each.how == "lost"]
    causes = state + lost
    if not state:
        causes += [each.difference for each in streams if _may_be_cause(each, found)]
    seeded = [each for each in streams if each.how == "seeded"]
    if data is not None:
        step = dict(data.evidence)["step"]
        reading = [e.difference for e in seeded if not e.in_model and e.step == step]
        seeded = [each for each in seeded if each.in_model]
        if _is_cause(data, found, resumed, state, lost):
            causes.append(_with_sampler(_with_seed(data, reading), sampler))
        elif sampler is not None:
            causes.append(sampler)
    causes += [each.difference for each in seeded]
    if not causes:
        later = later_difference(saved, resumed, at_step, found)
        causes = [later or not_loaded(saved, resumed, at_step) or _unknown(found)]
    return causes


def _may_be_cause(stream: StreamDifference, found: Divergence) -> bool:
    """Whether the draws from a restored stream show that it may be why results differ.

    The calls of a model, and how much a call draws, follow from the model's mode and inputs.
    """
    before = stream.step <= found.step
    return stream.how == "drifted" and stream.calls and not stream.in_model and before


def _is_cause(
    data: Difference,
    found: Divergence,
    resumed: Trace,
    state: Sequence[Difference],
    lost: Sequence[Difference],
) -> bool:
    """Whether other inputs of the model are a cause, and do not only follow from others.

    They are one if the uninterrupted Run reads the same inputs elsewhere. Otherwise they may be
    drawn or computed from what differs, so no stream may be lost, the model must be restored, and
    no other result may differ before them.
    """
    evidence = dict(data.evidence)
    if evidence["known"]:
        return True
    if lost or any(each.code == "model" for each in state):
        return False
    recorded = any(id.kind == "input" for rank in resumed.ranks for id in rank.tensors)
    same_step = found.where is None or found.where.kind == "input" or not recorded
    step = int(evidence["step"])
    return step < found.step or (step == found.step and same_step)


def _with_seed(data: Difference, seeded: Sequence[Difference]) -> Difference:
    """The difference of the data, extended by that of a generator that the program seeds."""
    if not seeded:
        return data
    first = seeded[0]
    message = f"{data.message}; {first.message}"
    return replace(data, message=message, cause=first.cause, source=first.source)


def _with_sampler(data: Difference, sampler: Difference | None) -> Difference:
    """The difference of the data, extended by that of the sampler's epoch, if there is one."""
    if sampler is None:
        return data
    message = f"{sampler.message}; {data.message.partition(': ')[2]}"
    evidence = (*data.evidence, *sampler.evidence)
    return replace(data, message=message, cause=sampler.cause, evidence=evidence)


def _unknown(found: Divergence) -> Difference:
    return Difference(
        "unknown",
        "the resumed training differs, and no difference in a recorded state or input explains it",
        "the step depends on state that is neither in the checkpoint nor recorded: check "
        "attributes of modules, of the loop and of the loss",
        found.rank,
        found.where,
        None if found.where is not None else StepSubject(found.step),
    )
