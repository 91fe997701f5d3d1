"""Finds the state that a training, resumed at another Point, loaded with other values.

Both trainings load the same saved values, so not even rounding may change what they loaded.  What
the first resumed step makes anew, such as lost moments, does not count as loaded.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from msgspec import structs

from pytest_trainsafe.align.logical import logical_tensor, whole_hash
from pytest_trainsafe.align.sketched import is_whole
from pytest_trainsafe.core.finding import RankSubject
from pytest_trainsafe.core.indices import LayoutError
from pytest_trainsafe.core.tensor_id import INITIAL, TensorId
from pytest_trainsafe.errors import TraceError
from pytest_trainsafe.judges.replay.resume.difference import ORDER, Code, Difference
from pytest_trainsafe.judges.replay.resume.state import entry_differences, part_of, state_after
from pytest_trainsafe.trace.facts import Part
from pytest_trainsafe.trace.reader import Trace

_KINDS = frozenset({"param", "master_param", "buffer", "optimizer_state"})

#: Parts of the state that are the same on every rank, whatever the layout.
_GLOBAL: frozenset[Code] = frozenset({"lr_schedule", "scaler"})

#: How the loaded values of one tensor at the other Point compare with those at the own Point.
#: "apart": its replicas differ.  "unknown": the values or their layout are not known.
_How = Literal["equal", "other", "apart", "absent", "unknown"]

_ABSENT = "is absent before the first resumed step and present after it"
_TEXTS: dict[_How, str] = {
    "other": "is loaded with other values than at",
    "apart": "is loaded with values that differ between its replicas, unlike at",
    "absent": f"{_ABSENT}, unlike at",
}

_CAUSE = (
    "the code that loads the checkpoint does not restore this state at this Point: check that it "
    "loads this state there, and how it divides or assembles what other ranks saved"
)


@dataclass(slots=True)
class LoadedState:
    """The comparison of the state that two resumed Runs loaded.

    `differences` has one Difference for each part of the state that differs.  `equal` counts the
    tensors with equal values, and `unknown` lists those that could not be compared.
    """

    differences: list[Difference] = field(default_factory=list)
    equal: int = 0
    unknown: list[TensorId] = field(default_factory=list)


def compare_loaded(same: Trace, moved: Trace, first: int) -> LoadedState:
    """Compares the state that `same` and `moved`, resumed at different Points, loaded.

    `first` is the number of their first step.
    """
    found = LoadedState()
    unlike: dict[Code, list[tuple[TensorId, _How]]] = {}
    for id in same.ids():
        if id.step != first - 1 or id.kind not in _KINDS:
            continue
        if id.kind == "buffer" and not _starts_alike(same, moved, id):
            continue  # its value may depend on the rank, even before anything is loaded
        how = _how_loaded(same, moved, id)
        if how == "equal":
            found.equal += 1
        elif how == "unknown":
            found.unknown.append(id)
        else:
            unlike.setdefault(part_of(id), []).append((id, how))
    differences: dict[Code, Difference] = {}
    for code, ids in unlike.items():
        id, how = ids[0]
        more = f"; {len(ids) - 1} more tensors of this part differ" if len(ids) > 1 else ""
        message = f"{id} {_TEXTS[how]} {same.point}{more}"
        differences[code] = Difference(code, message, _CAUSE, where=id)
    for each in entry_differences(same, moved, first):
        if each.code in _GLOBAL:
            differences[each.code] = each
    for each in _entries_otherwise(same, moved, first):
        differences.setdefault(each.code, each)
    found.differences = sorted(differences.values(), key=lambda each: ORDER.index(each.code))
    return found


def _how_loaded(same: Trace, moved: Trace, id: TensorId) -> _How:
    after = structs.replace(id, step=id.step + 1)
    if any(after in rank.tensors and id not in rank.tensors for rank in moved.ranks):
        return "absent"
    holders = same.holders(id), moved.holders(id)
    if not all(holders) or holders[0][0][1].dtype != holders[1][0][1].dtype:
        return "unknown"
    hashes = whole_hash(same, id), whole_hash(moved, id)
    if hashes[0] is not None and hashes[0] == hashes[1]:
        return "equal"
    if None not in hashes and not (is_whole(same, id) and is_whole(moved, id)):
        return "other"  # the bits differ, and the values were not kept
    try:
        was = logical_tensor(same, id)
        if was.tensor is None or was.findings:
            return "unknown"
        now = logical_tensor(moved, id, tuple(was.tensor.shape))
    except (TraceError, LayoutError):  # the values were not kept, or the layout does not fit
        return "unknown"
    # A shape or parts that do not fit show a wrong layout, not wrong values.
    checks = {finding.check for finding in now.findings}
    if now.tensor is None or checks - {"replicas"} or now.tensor.shape != was.tensor.shape:
        return "unknown"
    if checks:
        return "apart"
    equal = np.array_equal(was.tensor.numpy(), now.tensor.numpy(), equal_nan=True)
    return "equal" if equal else "other"


def _starts_alike(same: Trace, moved: Trace, id: TensorId) -> bool:
    initial = structs.replace(id, step=INITIAL)
    events = [rank.tensors.get(initial) for trace in (same, moved) for rank in trace.ranks]
    return None not in events and len({event.hash for event in events if event is not None}) == 1


def _entries_otherwise(same: Trace, moved: Trace, first: int) -> Iterator[Difference]:
    """Differences in the moments and step counters that optimizers keep as numbers, not tensors.

    Ranks may hold these for other parameters at another Point, so the entries of all ranks are
    compared, by name.
    """
    parts: tuple[Part, ...] = ("moment", "step_counter")
    for part in parts:
        was, now = _entries(same, part, first), _entries(moved, part, first)
        later = _entries(moved, part, first + 1)
        for name, values in was.items():
            found = now.get(name, set())
            lost = not found and name in later
            if len(values) > 1 or found == values or not (found or lost):
                continue
            how = f"is {' and '.join(sorted(found))}" if found else _ABSENT
            message = f"{name} {how}, unlike at {same.point}, where it is {' and '.join(values)}"
            yield Difference(part, message, _CAUSE, subject=RankSubject(0))
            break


def _entries(trace: Trace, part: Part, steps: int) -> dict[str, set[str]]:
    """The values on all ranks of each entry of a part after `steps` steps, by name."""
    found: dict[str, set[str]] = {}
    for rank in trace.ranks:
        state = state_after(rank, steps)
        for name, value in (state.of(part) if state is not None else {}).items():
            found.setdefault(name, set()).add(value)
    return found
