"""The lengths of dimensions as unknowns: which are one, which are products, which are sums.

Dimensions that only happen to be equally long stay apart.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence


class Length:
    """The length of dimensions that must be equally long; `size` is the length that they have.

    `factors` are the dimensions that a view joins to it, outermost first, and `segments` the parts
    into which slices and splits cut it, in their order; empty if there are none.
    A `fixed` length does not shrink.
    """

    __slots__ = ("_parent", "even", "factors", "fixed", "segments", "size")

    def __init__(self, size: int, *, fixed: bool = False) -> None:
        self.size = size
        self.fixed = fixed or size < 2
        self.even = False
        self.factors: tuple[Length, ...] = ()
        self.segments: tuple[Length, ...] = ()
        self._parent: Length | None = None

    @property
    def root(self) -> Length:
        """The one that stands for all lengths that were united with this one."""
        root = self
        while root._parent is not None:
            root = root._parent
        each = self
        while each._parent is not None:
            each._parent, each = root, each._parent
        return root


#: A length, or several of which it is the sum; where both sides of an equation are products.
Equation = tuple[tuple[tuple[Length, ...], ...], tuple[Length, ...]]


class Lengths:
    """What holds between lengths; `equations` are those that their structure does not show."""

    def __init__(self) -> None:
        self.equations: list[Equation] = []

    def unite(self, a: Length, b: Length) -> None:
        """Let two lengths be one, with all factors and segments; not if they differ."""
        a, b = a.root, b.root
        if a is b or a.size != b.size:
            return
        b._parent = a
        a.fixed |= b.fixed
        a.even |= b.even
        factors, segments = b.factors, b.segments
        if a.factors and factors:
            self.multiply(a.factors, factors)
        a.factors = a.factors or factors
        if a.segments and segments:
            self.join(a.segments, segments)
        a.segments = a.segments or segments

    def multiply(self, one: Sequence[Length], other: Sequence[Length]) -> None:
        """Let two products of dimensions be the same, as a view says: both in the same order.

        Where one side has a dimension that the other splits, it becomes a product.
        """
        left, right = _Stack(one), _Stack(other)
        while True:
            a, b = left.pop(), right.pop()
            if a is None or b is None:
                return
            if a.size == b.size:
                self.unite(a, b)
            elif a.size < b.size and b.size % a.size == 0:
                right.push(self._split(b, a))
            elif b.size < a.size and a.size % b.size == 0:
                left.push(self._split(a, b))
            else:
                ones, others = _balanced(left, right, a, b)
                self.equations.append(((tuple(ones),), tuple(others)))

    def _split(self, whole: Length, first: Length) -> Length:
        rest = Length(whole.size // first.size, fixed=whole.fixed)
        first.fixed |= whole.fixed
        whole.factors = (first, rest)
        return rest

    def times(self, count: int, each: Length, whole: Length) -> None:
        """Let `whole` be a number of lengths that does not shrink."""
        if count * each.size == whole.size:
            if count == 1:
                self.unite(each, whole)
            else:
                self.multiply([Length(count, fixed=True), each], [whole])

    def join(self, one: Sequence[Length], other: Sequence[Length]) -> None:
        """Let two sums of segments be the same, each segment in its place."""
        left, right = _Stack(one, sums=True), _Stack(other, sums=True)
        while True:
            a, b = left.pop(), right.pop()
            if a is None or b is None:
                return
            if a.size == b.size:
                self.unite(a, b)
            elif a.size < b.size:
                right.push(self._cut(b, a))
            else:
                left.push(self._cut(a, b))

    def _cut(self, whole: Length, first: Length) -> Length:
        rest = Length(whole.size - first.size, fixed=whole.fixed)
        whole.segments = (first, rest)
        return rest

    def sum(self, parts: Sequence[Length], whole: Length) -> None:
        """Let `whole` be cut into parts, in their order."""
        if sum(part.size for part in parts) != whole.size:
            return
        filled = tuple(part for part in parts if part.size)
        if len(filled) == 1:
            self.unite(filled[0], whole)
        elif whole.root.segments:
            self.join(whole.root.segments, filled)
        else:
            whole.root.segments = filled

    def between(self, whole: Length, start: int, end: int) -> tuple[Length, ...]:
        """The segments of a length from a position to another, which become ends of segments."""
        if not 0 <= start < end <= whole.size:
            return ()
        if (start, end) == (0, whole.size):
            return (whole,)
        sizes = (start, end - start, whole.size - end)
        self.sum([Length(size) for size in sizes], whole)
        place, found = 0, []
        for segment in segments(whole):
            if start <= place < end:
                found.append(segment)
            place += segment.size
        return tuple(found)

    def alike(self, lengths: Sequence[Length]) -> None:
        """Unite segments that cut a length into equal parts, until nothing changes.

        So a view that has the number of parts as a dimension is the same as the parts.
        """
        waiting, done = list(lengths), set()
        while waiting:
            whole = waiting.pop().root
            parts = tuple(segments(whole))
            key = (whole, len(parts))
            if len(parts) < 2 or key in done:
                continue
            done.add(key)
            waiting += parts
            if len({part.size for part in parts}) == 1:
                for part in parts[1:]:
                    self.unite(parts[0], part)
                self.times(len(parts), parts[0].root, whole)


class _Stack:
    """Lengths in their order, each taken apart into its factors or segments when it is met."""

    def __init__(self, lengths: Sequence[Length], *, sums: bool = False) -> None:
        self._sums = sums
        self._waiting = list(reversed(lengths))

    def push(self, length: Length) -> None:
        self._waiting.append(length)

    def pop(self) -> Length | None:
        while self._waiting:
            found = self._waiting.pop().root
            inner = found.segments if self._sums else found.factors
            if inner:
                self._waiting += reversed(inner)
            elif found.size != (0 if self._sums else 1):
                return found
        return None


def _balanced(
    left: _Stack, right: _Stack, a: Length, b: Length
) -> tuple[list[Length], list[Length]]:
    """The shortest runs from both stacks that have equal products."""
    ones, others = [a], [b]
    while (one := math.prod(x.size for x in ones)) != (other := math.prod(x.size for x in others)):
        side, stack = (ones, left) if one < other else (others, right)
        found = stack.pop()
        if found is None:
            return ones, others
        side.append(found)
    return ones, others


def segments(length: Length) -> Iterator[Length]:
    """The smallest segments of a length in their order; the length itself if it has none."""
    root = length.root
    if not root.segments:
        yield root
    for each in root.segments:
        yield from segments(each)


def atoms(length: Length) -> Iterator[Length]:
    """The lengths of which one is the product, none of which is a product itself."""
    root = length.root
    if not root.factors:
        yield root
    for each in root.factors:
        yield from atoms(each)
