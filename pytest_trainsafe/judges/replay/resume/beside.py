"""Finds weights beside the watched model that were not restored, such as an average of its weights.

The Runs record hashes of them at the checkpoint and one step later, by what holds them.
"""

from __future__ import annotations

from pytest_trainsafe.core.finding import RankSubject
from pytest_trainsafe.judges.replay.resume.difference import Difference
from pytest_trainsafe.trace.facts import KeptWeights
from pytest_trainsafe.trace.reader import RankTrace, Trace

_CAUSE = (
    "save these weights in the checkpoint and load them: an average of the weights, a teacher or a "
    "critic is in no state_dict of the model"
)


def not_loaded(saved: Trace, resumed: Trace, steps: int) -> Difference | None:
    """The first weights beside the model that have other values when the resumed Run begins.

    `steps` is the number of steps before the checkpoint.  Weights that the resumed Run has not yet
    made, and copies that no step changes, are not compared.
    """
    for one, other in zip(saved.ranks, resumed.ranks, strict=True):
        was, now = _kept(one, steps), _kept(other, steps)
        for name in _trained(one, steps):
            if name in now and was[name] - now[name]:
                return _difference(name, one.rank, "has other values when the training resumes")
    return None


def not_continued(saved: Trace, resumed: Trace, steps: int) -> Difference | None:
    """The first weights beside the model that have other values after the first resumed step.

    For Runs whose results agree.
    """
    for one, other in zip(saved.ranks, resumed.ranks, strict=True):
        was, now = _kept(one, steps + 1), _kept(other, steps + 1)
        for name in _trained(one, steps):
            if name in now and (was[name] - _kept(one, steps)[name]) - now[name]:
                how = f"has other values after step {steps}, though no result of the model differs"
                return _difference(name, one.rank, how)
    return None


def _trained(rank: RankTrace, steps: int) -> list[str]:
    """What holds weights at the checkpoint that the next step changes."""
    before, after = _kept(rank, steps), _kept(rank, steps + 1)
    return [name for name in before if after.get(name, set()) - before[name]]


def _kept(rank: RankTrace, steps: int) -> dict[str, set[str]]:
    """The hashes of the weights beside the model after `steps` steps, as they were found last."""
    found = [each for each in rank.events_of(KeptWeights) if each.steps == steps]
    return {name: set(hashes) for name, hashes in found[-1].hashes.items()} if found else {}


def _difference(name: str, rank: int, how: str) -> Difference:
    return Difference(
        "average",
        f"weights beside the watched model are not restored: on rank {rank} {name} {how}",
        _CAUSE,
        rank,
        subject=RankSubject(rank),
        evidence=(("name", name),),
    )
