"""Finds the state of the training that differs at the first step after the checkpoint.

Tensors (weights, moments, step counters) as the resumed Run loaded them are compared with those of
the uninterrupted Run; counters, schedules and scales are compared by the `TrainingState` of both.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar, cast

from pytest_trainsafe.core.finding import RankSubject
from pytest_trainsafe.core.tensor_id import TensorId
from pytest_trainsafe.core.usage import name_ranks
from pytest_trainsafe.errors import TraceError
from pytest_trainsafe.judges.replay.resume.difference import Code, Difference
from pytest_trainsafe.trace.facts import Part, TrainingState
from pytest_trainsafe.trace.reader import RankTrace, Trace
from pytest_trainsafe.trace.schema import TensorEvent

_KINDS = frozenset({"param", "master_param", "buffer", "optimizer_state"})

#: The name of each part of the state in messages.
_NAMES: dict[Code, str] = {
    "model": "the model",
    "moment": "an optimizer moment",
    "step_counter": "the optimizer's step counter",
    "lr_schedule": "the LR schedule",
    "scaler": "the gradient scaler",
    "frozen": "which parameters are frozen",
}

#: How a program resumes each part of the state.
_CAUSES: dict[Code, str] = {
    "model": "save the model's whole state_dict, with its buffers, and load it on every rank "
    "before the first step; a buffer with persistent=False is in no state_dict",
    "moment": "save optimizer.state_dict() after the optimizer's step, and load it on every rank "
    "into an optimizer of the same parameters in the same order",
    "step_counter": "save and load all of optimizer.state_dict(): Adam's bias correction depends "
    "on the counter of each parameter",
    "lr_schedule": "save scheduler.state_dict() and load it after the scheduler is made; making a "
    "scheduler sets the learning rate of its first step",
    "scaler": "save scaler.state_dict() and load it: the scale and the number of steps since it "
    "last grew decide which later steps overflow",
    "frozen": "requires_grad is in no state_dict: freeze the same parameters before the first "
    "resumed step, and save what decides which are frozen",
}

#: How a program resumes a learning rate that a scheduler sets, or that no scheduler sets.
_SET_BY_SCHEDULER = (
    "save optimizer.state_dict(), and load it after the scheduler is made: making a scheduler sets "
    "the learning rate of its first step"
)
_SET_BY_PROGRAM = (
    "save optimizer.state_dict() and load it; if the program computes the value from a counter, "
    "restore this counter"
)
_GROUPS = (
    "let the resumed training make the same parameter groups before it loads "
    "optimizer.state_dict(), also those that are added during the training"
)

#: How many ranks on which other values differ are described one by one.
_SHOWN = 3

_GROUP = re.compile(r"(optimizer \d+, )?group \d+")


@dataclass(frozen=True, slots=True)
class _OnRank:
    """What differs on one rank: a text on the first value, and the names of all."""

    shown: str
    names: frozenset[str]

    def __str__(self) -> str:
        others = len(self.names) - 1
        return self.shown + (f"; {others} more of its values differ" if others else "")


def state_differences(
    whole: Trace, saved: Trace, resumed: Trace, step: int, *, updated: bool
) -> list[Difference]:
    """One difference for each part of the state that is wrong when the resumed Run starts `step`.

    `step` is also the number of steps before the checkpoint. `updated` says whether the first
    result that differs is one of the optimizer's step: only then can hyperparameters be the cause.
    """
    found = list(_of_tensors(whole, resumed, step - 1))
    known = {each.code for each in found}
    lasting: tuple[Part, ...] = ("frozen", "lr_schedule") if found or not updated else ("frozen",)
    entries = entry_differences(saved, resumed, step, lasting=lasting)
    return found + [each for each in entries if each.code not in known]


def entry_differences(
    saved: Trace, resumed: Trace, steps: int, *, lasting: Collection[Part] = ()
) -> Iterator[Difference]:
    """One difference for each part of `TrainingState` that differs after `steps` steps.

    Random streams are not compared here. Of the parts `lasting`, values that are equal again one
    step later are left out, as the program may set them at the beginning of each step. A torch
    scheduler does not, so hyperparameters are not left out if the program has one.

    If the Runs have different numbers of ranks, the ranks that both have are compared.
    """
    parts: tuple[Part, ...] = ("moment", "step_counter", "lr_schedule", "scaler", "frozen")
    scheduled = _has_scheduler(saved, steps)
    pairs = list(zip(saved.ranks, resumed.ranks, strict=False))
    for part in parts:
        differ = [
            (one.rank, name, now, was)
            for one, other in pairs
            for name, was, now in _unlike(one, other, part, steps)
        ]
        if part in lasting and not (part == "lr_schedule" and scheduled):
            again = {
                (one.rank, name)
                for one, other in pairs
                for name, _, _ in _unlike(one, other, part, steps + 1)
            }
            differ = [each for each in differ if each[:2] in again]
        if not differ:
            continue
        rank, name, now, was = differ[0]
        group = _group_of(name)
        what, cause, whole_group, how = "", "", False, ""
        if group and {_has_group(t.ranks[rank], group, steps) for t in (saved, resumed)} == {
            True,
            False,
        }:
            what, cause, whole_group = "a parameter group", _GROUPS, True
            how = "additional" if now else "missing"
        elif group and part == "lr_schedule":
            what = "" if name.endswith(": lr") else "a hyperparameter of the optimizer"
            cause = _SET_BY_SCHEDULER if scheduled else _SET_BY_PROGRAM
        by_rank: dict[int, _OnRank] = {}
        for owner, rows in _by_rank(differ).items():
            _, one, found, wanted = rows[0]
            none = "trained" if part == "frozen" else "absent"
            shown = f"{one} is {found or none}, not {wanted or none}"
            if whole_group:
                shown = f"{_group_of(one)} of the optimizer is {how}"
            names = frozenset((whole_group and _group_of(row[1])) or row[1] for row in rows)
            by_rank[owner] = _OnRank(shown, names)
        yield _difference(part, by_rank, (name, now, was), what=what, cause=cause)


_Row = TypeVar("_Row", bound=tuple[object, ...])


def _by_rank(rows: Sequence[_Row]) -> dict[int, list[_Row]]:
    """Rows that begin with a rank, by this rank."""
    found: dict[int, list[_Row]] = {}
    for row in rows:
        found.setdefault(cast(int, row[0]), []).append(row)
    return found


def _group_of(name: str) -> str:
    """The parameter group of an entry of `TrainingState`: "group 1"; "" for another entry."""
    group = name.partition(":")[0]
    return group if _GROUP.fullmatch(group) else ""


def _has_group(rank: RankTrace, group: str, steps: int) -> bool:
    state = state_after(rank, steps)
    return state is not None and any(_group_of(each.name) == group for each in state.entries)


def _has_scheduler(trace: Trace, steps: int) -> bool:
    states = [state_after(rank, steps) for rank in trace.ranks]
    return any(
        not _group_of(name)
        for state in states
        if state is not None
        for name in state.of("lr_schedule")
    )


def state_after(rank: RankTrace, steps: int) -> TrainingState | None:
    """The state of a rank after `steps` steps; None if it recorded none."""
    states = rank.events_of(TrainingState)
    return next((state for state in states if state.steps == steps), None)


def place_of(rank: RankTrace, steps: int) -> int | None:
    """The position of the event that records the training state after `steps` steps.

    Returns None if the rank recorded no such event.
    """
    for order, event in enumerate(rank.events):
        if isinstance(event, TrainingState) and event.steps == steps:
            return order
    return None


def _unlike(
    one: RankTrace, other: RankTrace, part: Part, steps: int
) -> Iterator[tuple[str, str, str]]:
    """The entries of a part that differ: the name, the value of `one`, and the value of `other`.

    An absent value is "".
    """
    was, now = state_after(one, steps), state_after(other, steps)
    if was is None or now is None:
        return
    wanted, found = was.of(part), now.of(part)
    for name in dict.fromkeys((*wanted, *found)):
        if wanted.get(name) != found.get(name):
            yield name, wanted.get(name, ""), found.get(name, "")


def _of_tensors(whole: Trace, resumed: Trace, step: int) -> Iterator[Difference]:
    """The weights, moments and step counters that the resumed Run loaded with different values."""
    unlike: dict[Code, list[tuple[int, TensorId]]] = {}
    for one, other in zip(whole.ranks, resumed.ranks, strict=True):
        ids = dict.fromkeys(
            id
            for id in itertools.chain(one.tensors, other.tensors)
            if id.step == step and id.kind in _KINDS and id.microbatch is None
        )
        for id in ids:
            if not _same(one.tensors.get(id), other.tensors.get(id)):
                unlike.setdefault(part_of(id), []).append((one.rank, id))
    for code, places in unlike.items():
        rank, id = places[0]
        now, was = (_value(trace, rank, id) for trace in (resumed, whole))
        by_rank = {}
        for owner, own in _by_rank(places).items():
            first = own[0][1]
            values = (_value(trace, owner, first) for trace in (resumed, whole))
            names = frozenset(place.path for _, place in own)
            by_rank[owner] = _OnRank(f"{first.path} {_compared(*values)}", names)
        yield _difference(code, by_rank, (id.path, now, was), id)


def part_of(id: TensorId) -> Code:
    """The part of the state that a parameter, a buffer or an optimizer state belongs to."""
    if id.kind != "optimizer_state":
        return "model"
    return "step_counter" if id.name.rpartition(".")[2] == "step" else "moment"


def _difference(
    code: Code,
    by_rank: Mapping[int, _OnRank],
    first: tuple[str, str, str],
    where: TensorId | None = None,
    what: str = "",
    cause: str = "",
) -> Difference:
    """The Difference of a part; `first` has the name, the value and the right value of the first.

    Ranks on which the same values differ in the same way are named together.
    """
    rank, (name, value, wanted) = next(iter(by_rank)), first
    alike: dict[_OnRank, list[int]] = {}
    for owner, unlike in by_rank.items():
        alike.setdefault(unlike, []).append(owner)
    parts = [
        f"on rank {ranks[0]} {unlike}"
        + (f"; {name_ranks(ranks[1:])} likewise" if len(ranks) > 1 else "")
        for unlike, ranks in list(alike.items())[:_SHOWN]
    ]
    others = [owner for ranks in list(alike.values())[_SHOWN:] for owner in ranks]
    if others:
        parts.append(f"other values on {name_ranks(others)}")
    return Difference(
        code,
        f"{what or _NAMES[code]} is not restored: {'; '.join(parts)}",
        cause or _CAUSES[code],
        rank,
        where,
        None if where is not None else RankSubject(rank),
        evidence=(("name", name), ("value", value), ("expected", wanted)),
    )


def _same(one: TensorEvent | None, other: TensorEvent | None) -> bool:
    if one is None or other is None:
        return one is other
    return (one.hash, one.dtype, one.shape) == (other.hash, other.dtype, other.shape)


def _compared(now: str, was: str) -> str:
    """A predicate such as "is 3, not 2", from the texts that `_value` returns for a tensor.

    `now` is the text for the resumed Run, and `was` that for the uninterrupted one.
    """
    if now == was:
        return "has different values"
    if was == "some values":
        return f"is {now}"
    return f"has values, but was {was}" if now == "some values" else f"is {now}, not {was}"


def _value(trace: Trace, rank: int, id: TensorId) -> str:
    """A short text for a tensor of a rank.

    It is "absent" if the tensor was not recorded, and "some values" if its values were not kept.
    For a tensor with one element it is the value of this element. For any other tensor it is "all
    zeros" or "some values".
    """
    event = trace.ranks[rank].tensors.get(id)
    if event is None:
        return "absent"
    try:
        tensor = trace.load(rank, event)
    except TraceError:  # a sketch has no values
        return "some values"
    if tensor.numel() == 1:
        return f"{tensor.item():g}"
    return "some values" if tensor.any() else "all zeros"
