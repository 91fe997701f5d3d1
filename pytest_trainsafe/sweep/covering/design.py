"""Covering designs under constraints: few rows that contain every valid tuple of values.

A row has one value number per axis.  A tuple of strength t fixes the values of t axes; it is valid
if a valid row contains it.  Constraints are a predicate on whole rows, because rules about Points
are functions of whole Points; libraries that take constraints on parts of a row cannot use them.

A product of up to MAX_POINTS rows is enumerated.  The greedy choice is then made among all valid
rows, and the valid tuples are known exactly.  For larger products, rows are built around an
uncovered tuple, axis by axis, as AETG does (Cohen et al., "The AETG System: An Approach to Testing
Based on Combinatorial Design").  Invalid rows are moved towards a known valid row.

Random numbers only break ties; they come from `random.Random(seed).random()`, which has the same
values on every machine and in every version of Python, so a design is the same everywhere.
"""

from __future__ import annotations

import functools
import heapq
import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from random import Random

from pytest_trainsafe.core.axes import MAX_POINTS

Row = tuple[int, ...]
#: The positions of axes, and the number of the value of each.
Part = tuple[tuple[int, ...], tuple[int, ...]]
Valid = Callable[[Row], bool]

#: At most RESTARTS designs are made, with ties broken in different ways, and the smallest is taken.
#: They may compare MAX_COMPARED tuples in all, which takes a second or two.
RESTARTS, MAX_COMPARED = 24, 250_000
#: For a product that is not enumerated: the number of designs that are made, and of rows that are
#: built to choose each row of a design from.
BUILT, CANDIDATES = 2, 12
#: Before a tuple of such a product is given up, all rows that contain it are tried if there are at
#: most EXHAUSTED of them, else TRIES random ones.
EXHAUSTED, TRIES = 2_000, 300


@dataclass(frozen=True, slots=True)
class Design:
    """The rows of a covering design, in the order of the product.

    `valid` is the number of valid rows, None where the product was not enumerated.  `covered` is
    the number of tuples that the rows contain.  `undecided` counts other tuples: no valid row was
    found that contains such a tuple, but not all rows that contain it were tried.  `undecided` is 0
    where the product was enumerated.
    """

    rows: tuple[Row, ...]
    valid: int | None
    covered: int
    undecided: int


def design(levels: Sequence[int], strength: int, valid: Valid = lambda row: True) -> Design:
    """A covering design of axes with these numbers of values.

    It has no rows if no valid row is found.
    """
    assert 1 <= strength <= len(levels), (strength, levels)
    groups = tuple(itertools.combinations(range(len(levels)), strength))
    if math.prod(levels) > MAX_POINTS:
        return _built(levels, groups, valid)
    every = [row for row in itertools.product(*map(range, levels)) if valid(row)]
    parts = [frozenset(_parts(row, groups)) for row in every]
    whole = frozenset().union(*parts)
    chosen: list[int] = []
    for seed in range(_restarts(len(every) * len(groups))):
        found = _smaller(_greedy(parts, len(whole), Random(seed)), parts)
        if not seed or len(found) < len(chosen):
            chosen = found
    return Design(tuple(every[each] for each in sorted(chosen)), len(every), len(whole), 0)


def tuples_of(rows: Iterable[Row], axes: int, strength: int) -> Iterator[Part]:
    """Yields the tuples of `strength` values that rows of `axes` values contain."""
    groups = tuple(itertools.combinations(range(axes), strength))
    for row in rows:
        yield from _parts(row, groups)


def _restarts(compared: int) -> int:
    """Returns how many designs to make, of which the smallest is taken.

    `compared` is the number of tuples that are compared to make one design.
    """
    return max(1, min(RESTARTS, MAX_COMPARED // max(1, compared)))


def _parts(row: Row, groups: Iterable[tuple[int, ...]]) -> Iterator[Part]:
    """Yields the tuple that a row contains for each group of axes: the axes and the row's values.

    `groups` has the positions of the axes of each group.
    """
    for group in groups:
        yield group, tuple(row[axis] for axis in group)


def _greedy(parts: Sequence[frozenset[Part]], total: int, random: Random) -> list[int]:
    """Chooses rows that together contain every tuple, and returns their indexes.

    `parts` has the tuples of each row, and `total` is the number of different tuples.  The gain of
    a row is the number of its tuples that no chosen row contains.  Each choice takes a row with the
    largest gain.  Gains never grow, so a row has the largest gain if its recomputed gain is at
    least as large as the last known gains of all other rows.
    """
    covered: set[Part] = set()
    queue = [(-len(each), random.random(), number) for number, each in enumerate(parts)]
    heapq.heapify(queue)
    chosen = []
    while len(covered) < total:
        _, tie, number = heapq.heappop(queue)
        gain = len(parts[number] - covered)
        if queue and (-gain, tie) > queue[0][:2]:
            heapq.heappush(queue, (-gain, tie, number))
            continue
        covered |= parts[number]
        chosen.append(number)
    return chosen


def _smaller(chosen: Sequence[int], parts: Sequence[frozenset[Part]]) -> list[int]:
    """The chosen rows without those that add nothing to the others.

    A row is a number, and `parts[number]` has the combinations of values that it covers.
    """
    counts = Counter(part for number in chosen for part in parts[number])
    kept = []
    for number in chosen:
        if all(counts[part] > 1 for part in parts[number]):
            counts.subtract(parts[number])
        else:
            kept.append(number)
    return kept


def _built(levels: Sequence[int], groups: Sequence[tuple[int, ...]], valid: Valid) -> Design:
    """A covering design, if all combinations of the axes' values are too many to list.

    Axis number i has `levels[i]` values, and each of `groups` has the numbers of axes of which all
    valid combinations of values must be covered.
    """
    valid = functools.cache(valid)
    base = _some_valid(levels, valid, Random(0))
    if base is None:
        return Design((), None, 0, 0)
    every = [
        (group, values)
        for group in groups
        for values in itertools.product(*(range(levels[axis]) for axis in group))
    ]
    impossible: dict[Part, bool] = {}
    made = []
    for seed in range(BUILT):
        left = dict.fromkeys(part for part in every if part not in impossible)
        rows = _rows_around(left, impossible, levels, groups, valid, base, Random(seed))
        made.append(tuple(sorted(rows)))
    undecided = sum(impossible.values())
    covered = len(every) - len(impossible)
    return Design(min(made, key=len), None, covered, undecided)


def _rows_around(
    left: dict[Part, None],
    impossible: dict[Part, bool],
    levels: Sequence[int],
    groups: Sequence[tuple[int, ...]],
    valid: Valid,
    base: Row,
    random: Random,
) -> list[Row]:
    """Rows that contain the tuples in `left`, each row built around one of them.  Empties `left`.

    Tuples for which no valid row is found are added to `impossible`, with True if some of their
    rows were not tried.
    """
    rows: list[Row] = []
    while left:
        part = _next_part(left)
        found = _best_with(part, left, levels, groups, valid, base, random)
        if found is None:
            del left[part]
            impossible[part] = not _exhausted(part, levels)
            continue
        rows.append(found)
        for each in _parts(found, groups):
            left.pop(each, None)
    return rows


def _next_part(left: dict[Part, None]) -> Part:
    """Returns the uncovered tuple around which the next row is built.

    `left` has the uncovered tuples.  The result is the first tuple that has the axis value that
    occurs in the largest number of these tuples.
    """
    counts = Counter(pair for part in left for pair in zip(*part, strict=True))
    most = max(counts, key=lambda pair: (counts[pair], -pair[0], -pair[1]))
    return next(part for part in left if most in zip(*part, strict=True))


def _best_with(
    part: Part,
    left: dict[Part, None],
    levels: Sequence[int],
    groups: Sequence[tuple[int, ...]],
    valid: Valid,
    base: Row,
    random: Random,
) -> Row | None:
    """A valid row with `part` and, if possible, many uncovered tuples; None if none is found."""
    best: tuple[int, Row] | None = None
    for _ in range(CANDIDATES):
        row = _towards(base, _filled(part, left, levels, groups, random), part, valid, random)
        if row is not None:
            gain = sum(each in left for each in _parts(row, groups))
            if best is None or gain > best[0]:
                best = gain, row
    if best is not None:
        return best[1]
    near = _rows_near(part, base, levels)
    return next(filter(valid, itertools.chain(near, _rows_with(part, levels, random))), None)


def _rows_near(part: Part, base: Row, levels: Sequence[int]) -> Iterator[Row]:
    """Yields the rows with `part` that differ from `base` in at most two other axes."""
    fixed = dict(zip(*part, strict=True))
    row = tuple(fixed.get(axis, value) for axis, value in enumerate(base))
    free = [axis for axis in range(len(levels)) if axis not in fixed]
    for one, other in itertools.combinations(free, 2) if len(free) > 1 else ():
        for values in itertools.product(range(levels[one]), range(levels[other])):
            changed = {one: values[0], other: values[1]}
            yield tuple(changed.get(axis, value) for axis, value in enumerate(row))


def _filled(
    part: Part,
    left: dict[Part, None],
    levels: Sequence[int],
    groups: Sequence[tuple[int, ...]],
    random: Random,
) -> Row:
    """A row with `part`; each other axis takes the value that adds the most uncovered tuples."""
    fixed = dict(zip(*part, strict=True))
    strength = len(part[0])
    rest = sorted(set(range(len(levels))) - set(fixed), key=lambda _: random.random())
    for axis in rest:
        others = list(itertools.combinations(sorted(fixed), strength - 1))
        scores = []
        for value in range(levels[axis]):
            fixed[axis] = value
            mine = (tuple(sorted((*other, axis))) for other in others)
            gain = sum((group, tuple(fixed[a] for a in group)) in left for group in mine)
            scores.append((gain, random.random(), value))
        fixed[axis] = max(scores)[2]
    return tuple(fixed[axis] for axis in range(len(levels)))


def _towards(base: Row, row: Row, part: Part, valid: Valid, random: Random) -> Row | None:
    """Changes `row` to the values of `base`, one axis after the other, until it is valid.

    The axes of `part` keep their values.  Returns the valid row, or None if there is none.
    """
    if valid(row):
        return row
    free = [axis for axis in range(len(row)) if axis not in part[0] and row[axis] != base[axis]]
    changed = list(row)
    for axis in sorted(free, key=lambda _: random.random()):
        changed[axis] = base[axis]
        if valid(tuple(changed)):
            return tuple(changed)
    return None


def _exhausted(part: Part, levels: Sequence[int]) -> bool:
    """Whether `_rows_with` yields every row with `part`."""
    return math.prod(n for axis, n in enumerate(levels) if axis not in part[0]) <= EXHAUSTED


def _rows_with(part: Part, levels: Sequence[int], random: Random) -> Iterator[Row]:
    """Yields all rows with `part`, or TRIES random ones if there are more than EXHAUSTED."""
    fixed = dict(zip(*part, strict=True))
    choices = [(fixed[axis],) if axis in fixed else range(n) for axis, n in enumerate(levels)]
    if _exhausted(part, levels):
        yield from itertools.product(*choices)
        return
    for _ in range(TRIES):
        yield tuple(each[int(random.random() * len(each))] for each in choices)


def _some_valid(levels: Sequence[int], valid: Valid, random: Random) -> Row | None:
    """The row of all first values if it is valid, else another valid row; None if none is found."""
    first = (0,) * len(levels)
    if valid(first):
        return first
    return next((row for row in _rows_with(((), ()), levels, random) if valid(row)), None)
