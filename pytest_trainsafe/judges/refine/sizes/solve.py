"""Small sizes for which all equations hold, with few elements in all tensors together."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from pytest_trainsafe.judges.refine.sizes.closure import Equation, Term
from pytest_trainsafe.judges.refine.sizes.equations import Sizes
from pytest_trainsafe.judges.refine.sizes.variables import Key

#: The largest size that is tried where no equation decides, and the most attempts.  A small size
#: may grow up to `_GROWN`, if others become smaller by it.
_TRIED = 24
_GROWN = 12
_ATTEMPTS = 200_000
#: The most attempts after which a better solution is still looked for.
_IMPROVED = 4_000


def solve(sizes: Sizes) -> dict[Key, int] | None:
    """A smaller size for each variable, or None if none was found.

    No size becomes 1, and sizes that differ in one shape still differ.
    """
    search = _Search(sizes)
    search.extend({}, {key: key[2] for key in sizes.fixed})
    return search.best


@dataclass
class _Search:
    sizes: Sizes
    best: dict[Key, int] | None = None
    cost: float = math.inf
    attempts: int = 0
    equations: dict[Key, list[Equation]] = field(default_factory=dict)
    shapes: dict[Key, list[tuple[Key | None, ...]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for equation in self.sizes.equations:
            for key in equation.sizes:
                self.equations.setdefault(key, []).append(equation)
        for shape in self.sizes.shapes:
            for each in set(shape):
                if each is not None:
                    self.shapes.setdefault(each, []).append(shape)

    def extend(self, known: Mapping[Key, int], chosen: Mapping[Key, int]) -> None:
        """Try all ways to complete a choice, the smallest sizes first."""
        self.attempts += 1
        if self.attempts > (_ATTEMPTS if self.best is None else _IMPROVED):
            return
        complete = self._propagated(known, chosen)
        if complete is None or self._cost(complete) >= self.cost:
            return
        free = [key for key in self.sizes.keys if key not in complete]
        if not free:
            self.best, self.cost = complete, self._cost(complete)
            return
        key = min(free, key=lambda each: (-len(self.equations.get(each, ())), each[2], each))
        tried = range(2, min(max(key[2], _GROWN), _TRIED) + 1)
        for small in (*tried, *(() if key[2] in tried else (key[2],))):
            self.extend(complete, {key: small})

    def _propagated(
        self, known: Mapping[Key, int], chosen: Mapping[Key, int]
    ) -> dict[Key, int] | None:
        """The choice with all sizes that follow from it; None if an equation fails."""
        complete = dict(known)
        waiting = list(chosen.items())
        while waiting:
            key, small = waiting.pop()
            if key in complete:
                if complete[key] != small:
                    return None
                continue
            complete[key] = small
            if not self._allowed(key, complete):
                return None
            for equation in self.equations.get(key, ()):
                missing = [each for each in equation.sizes if each not in complete]
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

    def _allowed(self, key: Key, known: Mapping[Key, int]) -> bool:
        small = known[key]
        if not 2 <= small <= max(key[2], _GROWN) or (small % 2 and key in self.sizes.even):
            return False
        return all(
            other is None or other[2] == key[2] or known.get(other) != small
            for shape in self.shapes.get(key, ())
            for other in shape
        )

    def _cost(self, known: Mapping[Key, int]) -> int:
        return sum(
            math.prod(1 if key is None else known.get(key, 2) for key in shape)
            for shape in self.sizes.shapes
        )


def _value(term: Term, known: Mapping[Key, int]) -> int:
    count, keys = term
    return count * math.prod(known[key] for key in keys)


def _total(equation: Equation, known: Mapping[Key, int]) -> int:
    return sum(_value(term, known) for term in equation.left)


def _solved(equation: Equation, key: Key, known: Mapping[Key, int]) -> int | None:
    """The size that an equation leaves, 0 if there is none; None if it cannot be solved."""
    signed = [(1, term) for term in equation.left] + [(-1, equation.right)]
    factor = rest = 0
    for sign, (count, keys) in signed:
        times = keys.count(key)
        if times > 1:
            return None
        product = sign * count * math.prod(known[each] for each in keys if each != key)
        if times:
            factor += product
        else:
            rest += product
    if factor == 0:
        return None
    return 0 if rest % factor else -rest // factor
