"""Closes equations: what views split and join on both sides is recognised as the same."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from pytest_trainsafe.judges.refine.sizes.variables import Key, Variables

#: A coefficient and sizes, which are multiplied.
Term = tuple[int, tuple[Key, ...]]


@dataclass(frozen=True)
class Equation:
    """The sum of the terms on the left equals the term on the right."""

    left: tuple[Term, ...]
    right: Term

    @property
    def sizes(self) -> frozenset[Key]:
        return frozenset(size for _, sizes in (*self.left, self.right) for size in sizes)


def rooted(equation: Equation, variables: Variables) -> Equation | None:
    """The equation of variables; None if it says nothing, or does not hold as it is."""

    def of(term: Term) -> Term:
        count, keys = term
        return count, tuple(sorted(map(variables.find, keys)))

    counted: Counter[tuple[Key, ...]] = Counter()
    for count, keys in map(of, equation.left):
        if count:
            counted[keys] += count
    left = tuple((count, keys) for keys, count in sorted(counted.items()))
    right = of(equation.right)
    total = sum(count * math.prod(key[2] for key in keys) for count, keys in left)
    if total != right[0] * math.prod(key[2] for key in right[1]) or left == (right,):
        return None
    return Equation(left, right)


def closed(equations: list[Equation], variables: Variables) -> frozenset[Equation]:
    """The equations, after variables that flattening made two of are one again.

    Equal products of equal factors are one variable, and so are the factors of one product, if
    they have equal sizes: a view that splits what another one joined gives the same dimensions.
    """
    while True:
        count = len(equations)
        found = {each for raw in equations if (each := rooted(raw, variables)) is not None}
        pairs = list(_duplicates(found))
        if not pairs:
            pairs = list(_refactored(found, equations))
        if not pairs:
            pairs = [(a, b) for a, b in _corresponding(found, equations) if a != b]
        for key, other in pairs:
            variables.unite(key, other)
        if not pairs and len(equations) == count:
            return frozenset(found)


def _duplicates(equations: Iterable[Equation]) -> Iterator[tuple[Key, Key]]:
    by_flat: dict[tuple[Key, tuple[int, ...]], tuple[Key, ...]] = {}
    by_factors: dict[tuple[int, tuple[Key, ...]], Key] = {}
    for equation in equations:
        if len(equation.left) != 1:
            continue
        for one, other in ((equation.left[0], equation.right), (equation.right, equation.left[0])):
            if len(one[1]) != 1 or one[0] != 1:
                continue
            (flat,), (count, factors) = one[1], other
            known = by_factors.setdefault((count, factors), flat)
            if known != flat:
                yield known, flat
            lengths = tuple(sorted(key[2] for key in factors))
            if len(set(lengths)) == len(lengths):
                ordered = tuple(sorted(factors, key=lambda key: key[2]))
                first = by_flat.setdefault((flat, (count, *lengths)), ordered)
                yield from ((a, b) for a, b in zip(first, ordered, strict=True) if a != b)


def _refactored(found: Iterable[Equation], equations: list[Equation]) -> Iterator[tuple[Key, Key]]:
    """The factors that two views of one flattened dimension have in common.

    What is left of both is equal: of 1280 as (20, 64) and as (2, 10, 64), 20 is 2 times 10.
    """
    by_flat: dict[Key, list[tuple[Key, ...]]] = {}
    for equation in found:
        for one, other in _products(equation):
            if len(one) == 1:
                by_flat.setdefault(one[0], []).append(other)
    for views in by_flat.values():
        for one, other in itertools.combinations(views, 2):
            left = {key[2]: key for key in one}
            right = {key[2]: key for key in other}
            common = left.keys() & right.keys()
            yield from ((left[size], right[size]) for size in common if left[size] != right[size])
            rest = [tuple(side[size] for size in side if size not in common)
                    for side in (left, right)]  # fmt: skip
            added = Equation(((1, rest[0]),), (1, rest[1]))
            if rest[0] and rest[1] and added not in equations:
                equations.append(added)


Product = tuple[tuple[Key, ...], tuple[Key, ...]]


def _corresponding(
    found: Iterable[Equation], equations: list[Equation]
) -> Iterator[tuple[Key, Key]]:
    """The factors that two views have in common, of which one is of a rank's part.

    If a rank's view has one factor less often on both sides, as (12, 32) and 384 beside (24, 32)
    and 768, and one of these pairs is known to be cut, then the other is cut as well; its ratio is
    added to the equations.  All other factors are the same.
    """
    ratios = {
        (equation.left[0][1][0], equation.right[1][0]): equation.left[0][0]
        for equation in found
        if len(equation.left) == 1 and len(equation.left[0][1]) == len(equation.right[1]) == 1
    }
    products = [each for equation in found for each in _products(equation)]
    for one, other in itertools.permutations(products, 2):
        sides = [_difference(a, b) for a, b in zip(one, other, strict=True)]
        if any(side is None for side in sides):
            continue
        pairs, cuts = zip(*(side for side in sides if side is not None), strict=True)
        factors = {large[2] // small[2] for small, large in cuts}
        if len(factors) != 1 or not any(cut in ratios for cut in cuts):
            continue
        yield from itertools.chain(*pairs)
        for small, large in cuts:
            if (small, large) not in ratios:
                (factor,) = factors
                ratios[small, large] = factor
                equations.append(Equation(((factor, (small,)),), (1, (large,))))


def _products(equation: Equation) -> Iterator[Product]:
    """Both sides of a view whose factors all have different sizes, in the order of sizes."""
    if len(equation.left) != 1 or equation.left[0][0] != 1 or equation.right[0] != 1:
        return
    sides = [tuple(sorted(term[1], key=lambda key: key[2]))
             for term in (equation.left[0], equation.right)]  # fmt: skip
    if all(len({key[2] for key in side}) == len(side) for side in sides):
        yield sides[0], sides[1]
        yield sides[1], sides[0]


Difference = tuple[list[tuple[Key, Key]], tuple[Key, Key]]


def _difference(small: Sequence[Key], large: Sequence[Key]) -> Difference | None:
    """The pairs of equal sizes, and the one pair of which the second is a multiple."""
    if len(small) != len(large):
        return None
    left = {key[2]: key for key in small}
    right = {key[2]: key for key in large}
    common = left.keys() & right.keys()
    only = [left[size] for size in left if size not in common]
    other = [right[size] for size in right if size not in common]
    if len(only) != 1 or len(other) != 1 or other[0][2] % only[0][2]:
        return None
    return [(left[size], right[size]) for size in common], (only[0], other[0])
