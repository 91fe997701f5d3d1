"""Small lengths for which all equations hold, with few elements in all tensors together."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from pytest_trainsafe.judges.refine.sizes.lengths import Length, Lengths, atoms, segments

#: The largest length that is tried where no equation decides, and the most attempts.  A small
#: length may grow up to `_GROWN`, if others become smaller by it.
_TRIED = 24
_GROWN = 12
_ATTEMPTS = 50_000
#: The most attempts after which a better solution is still looked for.
_IMPROVED = 500

#: A coefficient and unknowns, which are multiplied; unknowns are numbered.
Term = tuple[int, tuple[int, ...]]


@dataclass(frozen=True)
class Equation:
    """The sum of the terms on the left equals the term on the right."""

    left: tuple[Term, ...]
    right: Term

    @property
    def unknowns(self) -> frozenset[int]:
        return frozenset(each for _, factors in (*self.left, self.right) for each in factors)


class Solution:
    """The small size of each length."""

    def __init__(self, system: _System, values: Mapping[int, int]) -> None:
        self._system, self._values = system, values

    def __getitem__(self, length: Length) -> int:
        return _value(self._system.term(length), self._values)


def solve(lengths: Lengths, shapes: Iterable[Sequence[Length]]) -> Solution | None:
    """A smaller size for each length of the shapes, or None if none was found.

    No length becomes 1, and lengths that differ in one shape still differ.
    """
    system = _System(lengths, shapes)
    search = _Search(system)
    search.extend({}, {})
    return None if search.best is None else Solution(system, search.best)


class _System:
    """The equations of lengths as equations of numbered unknowns, which are no products."""

    def __init__(self, lengths: Lengths, shapes: Iterable[Sequence[Length]]) -> None:
        self.sizes: list[int] = []
        self.even: set[int] = set()
        self._numbers: dict[Length, int] = {}
        self.shapes = sorted({tuple(map(self.term, shape)) for shape in shapes})
        found = {each for length in list(_known(shapes, lengths)) for each in self._sum(length)}
        for left, right in lengths.equations:
            found.add(Equation((self._product(left[0]),), self._product(right)))
        self.equations = [each for each in found if each.unknowns]

    def term(self, length: Length) -> Term:
        """The product of unknowns and numbers that do not shrink."""
        return self._product((length,))

    def _product(self, lengths: Sequence[Length]) -> Term:
        count, factors = 1, []
        fixed = any(each.root.fixed for each in lengths)
        for atom in (atom for each in lengths for atom in atoms(each)):
            if atom.fixed or fixed:
                count *= atom.size
            else:
                factors.append(self._number(atom))
        return count, tuple(sorted(factors))

    def _number(self, atom: Length) -> int:
        if atom not in self._numbers:
            self._numbers[atom] = len(self.sizes)
            self.sizes.append(atom.size)
        if atom.even:
            self.even.add(self._numbers[atom])
        return self._numbers[atom]

    def _sum(self, length: Length) -> Iterator[Equation]:
        counted: dict[tuple[int, ...], int] = {}
        for count, factors in map(self.term, segments(length)):
            counted[factors] = counted.get(factors, 0) + count
        left = tuple((count, factors) for factors, count in sorted(counted.items()))
        if left != (self.term(length),):
            yield Equation(left, self.term(length))


def _known(shapes: Iterable[Sequence[Length]], lengths: Lengths) -> Iterator[Length]:
    """All lengths that are cut into segments: those of shapes, their factors and their segments."""
    waiting = [each for shape in shapes for each in shape]
    seen: set[Length] = set()
    while waiting:
        root = waiting.pop().root
        if root in seen:
            continue
        seen.add(root)
        waiting += (*root.factors, *root.segments)
        if root.segments:
            yield root


@dataclass
class _Search:
    system: _System
    best: dict[int, int] | None = None
    cost: float = math.inf
    attempts: int = 0
    equations: dict[int, list[Equation]] = field(default_factory=dict)
    pairs: dict[int, list[tuple[Term, Term]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for equation in self.system.equations:
            for each in equation.unknowns:
                self.equations.setdefault(each, []).append(equation)
        for one, other in {
            (min(a, b), max(a, b)) for shape in self.system.shapes for a in shape for b in shape
        }:
            if self._full(one) != self._full(other):
                for each in {*one[1], *other[1]}:
                    self.pairs.setdefault(each, []).append((one, other))
        self.terms = sorted({each for shape in self.system.shapes for each in shape})
        place = {each: number for number, each in enumerate(self.terms)}
        self.shapes = [[place[each] for each in shape] for shape in self.system.shapes]
        self.order = sorted(
            range(len(self.system.sizes)),
            key=lambda each: (-len(self.equations.get(each, ())), self.system.sizes[each], each),
        )

    def _full(self, term: Term) -> int:
        return term[0] * math.prod(self.system.sizes[each] for each in term[1])

    def extend(self, known: Mapping[int, int], chosen: Mapping[int, int]) -> None:
        """Try all ways to complete a choice, the smallest lengths first."""
        self.attempts += 1
        if self.attempts > (_ATTEMPTS if self.best is None else _IMPROVED):
            return
        complete = self._propagated(known, chosen)
        if complete is None or (cost := self._cost(complete)) >= self.cost:
            return
        free = next((each for each in self.order if each not in complete), None)
        if free is None:
            self.best, self.cost = complete, cost
            return
        size = self.system.sizes[free]
        tried = range(2, min(max(size, _GROWN), _TRIED) + 1)
        for small in (*tried, *(() if size in tried else (size,))):
            self.extend(complete, {free: small})

    def _propagated(
        self, known: Mapping[int, int], chosen: Mapping[int, int]
    ) -> dict[int, int] | None:
        """The choice with all lengths that follow from it; None if an equation fails."""
        complete = dict(known)
        waiting = list(chosen.items())
        while waiting:
            each, small = waiting.pop()
            if each in complete:
                if complete[each] != small:
                    return None
                continue
            complete[each] = small
            if not self._allowed(each, complete):
                return None
            for equation in self.equations.get(each, ()):
                missing = [other for other in equation.unknowns if other not in complete]
                if not missing:
                    if _total(equation, complete) != _value(equation.right, complete):
                        return None
                elif len(missing) == 1:
                    found = _solved(equation, missing[0], complete)
                    if found is not None:
                        if found < 2:
                            return None
                        waiting.append((missing[0], found))
        return complete

    def _allowed(self, each: int, known: Mapping[int, int]) -> bool:
        small = known[each]
        if not 2 <= small <= max(self.system.sizes[each], _GROWN):
            return False
        if small % 2 and each in self.system.even:
            return False
        for one, other in self.pairs.get(each, ()):
            if all(x in known for term in (one, other) for x in term[1]) and _value(
                one, known
            ) == _value(other, known):
                return False
        return True

    def _cost(self, known: Mapping[int, int]) -> int:
        """How many elements all shapes have together; unknowns that are not chosen count 2."""
        sizes = [
            count * math.prod(known.get(each, 2) for each in factors)
            for count, factors in self.terms
        ]
        return sum(math.prod(map(sizes.__getitem__, shape)) for shape in self.shapes)


def _value(term: Term, known: Mapping[int, int]) -> int:
    count, factors = term
    return count * math.prod(known[each] for each in factors)


def _total(equation: Equation, known: Mapping[int, int]) -> int:
    return sum(_value(term, known) for term in equation.left)


def _solved(equation: Equation, unknown: int, known: Mapping[int, int]) -> int | None:
    """The length that an equation leaves, 0 if there is none; None if it cannot be solved."""
    signed = [(1, term) for term in equation.left] + [(-1, equation.right)]
    factor = rest = 0
    for sign, (count, factors) in signed:
        times = factors.count(unknown)
        if times > 1:
            return None
        product = sign * count * math.prod(known[each] for each in factors if each != unknown)
        if times:
            factor += product
        else:
            rest += product
    if factor == 0:
        return None
    return 0 if rest % factor else -rest // factor
