"""Chooses the ranks to compare with each other and their common steps, and joins their records."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import numpy as np

from pytest_trainsafe.judges.learn.columns.frame import Bools, Frame, Ints, Keys, Records, combine
from pytest_trainsafe.judges.learn.conditions import Feature, joined
from pytest_trainsafe.judges.learn.events.table import NONE

#: More than any number of steps.
_NO_END = 2**62

#: Meta variables that number all ranks, not the ranks along one axis.
_WHOLE = {"rank", "local_rank", "global_rank"}


def rank_pairs(frames: Sequence[Frame]) -> list[tuple[Frame, Frame]]:
    """The pairs of ranks to compare: neighbours along each axis of the mesh.

    If the ranks' axes are not known, neighbouring ranks are compared.  Neighbours are enough: what
    is equal along a chain is equal on all its ranks, and the cost is linear in their number.
    """
    ordered = sorted(frames, key=lambda frame: frame.table.rank)
    places = [coordinates(frame) for frame in ordered]
    axes = sorted(places[0]) if places else []
    if not axes or any(sorted(place) != axes for place in places):
        return list(itertools.pairwise(ordered))
    pairs: list[tuple[Frame, Frame]] = []
    for axis in axes:
        lines: dict[tuple[int, ...], list[tuple[int, int]]] = {}
        for index, place in enumerate(places):
            rest = tuple(place[name] for name in axes if name != axis)
            lines.setdefault(rest, []).append((place[axis], index))
        for line in lines.values():
            pairs += itertools.pairwise([ordered[index] for _, index in sorted(line)])
    return pairs


def common_steps(one: Frame, other: Frame) -> tuple[int, bool]:
    """The number of the first step of one rank that is not the same step of the other.

    Ranks may train for different numbers of steps in an epoch, or in a use of torch's `Join`: then
    all later steps with equal numbers are different ones.  If both ranks end with that epoch, the
    second value is True, unless it is in `Join`: one rank may wait for the other in that step.
    """
    both = [blocks(frame) for frame in (one, other)]
    for at, (mine, its) in enumerate(zip(*both, strict=False)):
        if len(mine[1]) != len(its[1]):
            last = all(at + 1 == len(each) for each in both)
            return min(mine[1][-1], its[1][-1]) + 1, last and mine[0][0] is its[0][0] is None
    return _NO_END, True


def blocks(frame: Frame) -> list[tuple[tuple[object, object], list[int]]]:
    """The steps that ended in each use of `Join` and each epoch, which are their key, in order.

    Outside of a use of `Join`, or of an epoch, None stands for it.
    """
    where: dict[int, tuple[object, object]] = {}
    for meta in frame.table.metas:
        step = meta.get("step")
        if isinstance(step, int):
            join, epoch = where.get(step, (None, None))
            where[step] = meta.get("join", join), meta.get("epoch", epoch)
    found: list[tuple[tuple[object, object], list[int]]] = []
    for step in frame.steps["step"].tolist():
        key = where.get(step, (None, None))
        if not found or key != found[-1][0]:
            found.append((key, []))
        found[-1][1].append(step)
    return found


def coordinates(frame: Frame) -> Mapping[str, int]:
    """The rank's position along each axis, such as {"dp_rank": 0, "tp_rank": 1}."""
    found: dict[str, int] = {}
    for meta in frame.table.metas:
        for name, value in meta.items():
            if name.endswith("_rank") and name not in _WHOLE and isinstance(value, int):
                found.setdefault(name, value)
    return found


def join(
    frames: tuple[Frame, Frame], records: tuple[Records, Records], keys: tuple[Keys, Keys]
) -> tuple[Records, Ints, Ints]:
    """Join the records of two ranks that have equal keys.  Each key is joined at most once.

    `frames`, `records` and `keys` have one entry for each of the two ranks.  A key is a hash of
    what identifies a record on its rank, such as the step together with the object.  Returns the
    joined records, the position of each in `records[0]`, and the position of each in `records[1]`.
    """
    _, at, to = np.intersect1d(keys[0], keys[1], return_indices=True)
    first, second = records
    if not len(at):
        return Records(at, at, [], of_calls=first.of_calls), at, to
    codes, rows = combine(first.codes[at], second.codes[to])
    places = [dict[str, Feature](coordinates(frame)) for frame in frames]
    features = [
        joined(
            {**first.features[int(first.codes[at[row]])], **places[0]},
            {**second.features[int(second.codes[to[row]])], **places[1]},
        )
        for row in rows
    ]
    other = frames[1], second.rows[to]
    found = Records(
        first.rows[at], codes, features, frame=frames[0], other=other, of_calls=first.of_calls
    )
    return found, at, to


def telling(frames: tuple[Frame, Frame], values: tuple[Ints, Ints]) -> Bools:
    """Which pairs of values say something about two ranks: those with a content on one of them.

    None, tensors of zeros and tensors without elements are equal on ranks that have nothing in
    common.  `values` has, for each of the two ranks, rows of its `Table.values`.
    """
    mine, its = (_blank(frame, rows) for frame, rows in zip(frames, values, strict=True))
    found: Bools = ~(mine & its)
    return found


def _blank(frame: Frame, rows: Ints) -> Bools:
    if not len(frame.values["shape"]):
        return np.zeros(len(rows), bool)
    shapes, at = np.unique(frame.values["shape"][rows], return_inverse=True)
    texts = frame.table.texts
    none = np.array([each != NONE and "0" in texts[each].split("x") for each in shapes], bool)
    found: Bools = frame.empty(rows) | (none[at] & (rows != NONE))
    return found


def mixed(*columns: Keys) -> Keys:
    """One hash for each row, from the hashes that several columns have in this row."""
    found = np.zeros(len(columns[0]), np.uint64)
    with np.errstate(over="ignore"):
        for column in columns:
            found = (found ^ column) * np.uint64(0x9E3779B97F4A7C15)
            found ^= found >> np.uint64(29)
    return found
