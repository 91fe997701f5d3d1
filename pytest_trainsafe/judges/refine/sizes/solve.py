"""Small sizes for which all equations hold, with few elements in all tensors together."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from pytest_trainsafe.judges.refine.sizes.equations import Equation, Sizes

#: The largest size that is tried where no equation decides, and the most attempts.  A small size
#: may grow up to `_GROWN`, if others become smaller by it.
_TRIED = 24
_GROWN = 12
_ATTEMPTS = 20_000


def solve(sizes: Sizes) -> dict[int, int] | None:
    """A smaller size for each, or None if none was found.

    No size becomes 1, and sizes that differ in one shape still differ.
    """
    search = _Search(sizes)
    search.extend({each: each for each in sizes.fixed})
    return search.best


@dataclass
class _Search:
    sizes: Sizes
    best: dict[int, int] | None = None
    cost: float = math.inf
    attempts: int = 0
    by_size: dict[int, list[Equation]] = field(default_factory=dict)
    shapes: dict[int, list[tuple[int, ...]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for equation in self.sizes.equations:
            for size in equation.sizes:
                self.by_size.setdefault(size, []).append(equation)
        for shape in self.sizes.shapes:
            for size in set(shape):
                self.shapes.setdefault(size, []).append(shape)

    def extend(self, chosen: dict[int, int]) -> None:
        """Try all ways to complete a choice, the smallest sizes first."""
        self.attempts += 1
        if self.attempts > _ATTEMPTS:
            return
        complete = self._propagated(chosen)
        if complete is None or self._cost(complete) >= self.cost:
            return
        free = [size for size in self.sizes.values if size not in complete]
        if not free:
            self.best, self.cost = complete, self._cost(complete)
            return
        size = min(free, key=lambda each: (-len(self.by_size.get(each, ())), each))
        for small in range(2, min(max(size, _GROWN), _TRIED) + 1):
            self.extend(complete | {size: small})

    def _propagated(self, chosen: dict[int, int]) -> dict[int, int] | None:
        """The choice with all sizes that follow from it; None if an equation fails."""
        known = dict(chosen)
        if not all(self._allowed(size, known) for size in known):
            return None
        changed = True
        while changed:
            changed = False
            for equation in self.sizes.equations:
                missing = [size for size in equation.sizes if size not in known]
                if not missing:
                    if _total(equation, known) != _value(equation.right, known):
                        return None
                elif len(missing) == 1:
                    found = _solved(equation, missing[0], known)
                    if found is None:
                        continue
                    if found < 2:
                        return None
                    known[missing[0]] = found
                    if not self._allowed(missing[0], known):
                        return None
                    changed = True
        return known

    def _allowed(self, size: int, known: dict[int, int]) -> bool:
        small = known[size]
        if not 2 <= small <= max(size, _GROWN):
            return False
        return all(
            other == size or known.get(other) != small
            for shape in self.shapes.get(size, ())
            for other in shape
        )

    def _cost(self, known: dict[int, int]) -> int:
        return sum(
            math.prod(known.get(size, 2) if size > 1 else 1 for size in shape)
            for shape in self.sizes.shapes
        )


def _value(term: tuple[int, tuple[int, ...]], known: dict[int, int]) -> int:
    count, sizes = term
    return count * math.prod(known[size] for size in sizes)


def _total(equation: Equation, known: dict[int, int]) -> int:
    return sum(_value(term, known) for term in equation.left)


def _solved(equation: Equation, size: int, known: dict[int, int]) -> int | None:
    """The size that an equation leaves, 0 if there is none; None if it cannot be solved."""
    signed = [(1, term) for term in equation.left] + [(-1, equation.right)]
    factor = rest = 0
    for sign, (count, sizes) in signed:
        times = sizes.count(size)
        if times > 1:
            return None
        product = sign * count * math.prod(known[each] for each in sizes if each != size)
        if times:
            factor += product
        else:
            rest += product
    if factor == 0:
        return None
    return 0 if rest % factor else -rest // factor
