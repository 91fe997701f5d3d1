"""Numbers for the symbolic sizes of graphs, which satisfy what the user assumes of them.

assume: [u0 % 4 == 0, s0 >= 2 * u0]   # what holds between the sizes
values: {u0: [8, 12]}                 # which are tried; without it, small ones are chosen
ranks: {s0: s0 // 2}                  # a rank's size by those of the sequential graph, if another
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pytest_trainsafe.core.untrusted import shown
from pytest_trainsafe.judges.refine.errors import CannotSayError, GraphError, InputRelationError
from pytest_trainsafe.judges.refine.graphs.graph import Graph
from pytest_trainsafe.judges.refine.graphs.symbols import (
    evaluate,
    names_in,
    symbols_of,
    with_numbers,
)

#: The keys of a declaration that speak of symbolic sizes.
KEYS = ("assume", "values", "ranks")
#: How many values of each size are tried, the smallest and the largest that are chosen.
COUNT = 3
_SMALLEST, _LARGEST = 3, 64
_ATTEMPTS = 200_000

Values = Mapping[str, int]


@dataclass(frozen=True)
class Symbols:
    """The symbolic sizes of graphs: what is assumed of them, and the values that are tried.

    `ranks` has a rank's sizes as expressions of those of the sequential graph.
    """

    assume: tuple[str, ...] = ()
    ranks: Mapping[str, str] = field(default_factory=dict)
    values: tuple[dict[str, int], ...] = ()

    def holds(self, values: Values) -> bool:
        """Whether all assumptions hold."""
        return all(evaluate(each, values) for each in self.assume)

    def of_ranks(self, values: Values) -> dict[str, int]:
        """The sizes of a rank's graph."""
        return {**values, **{name: evaluate(text, values) for name, text in self.ranks.items()}}

    def numbered(
        self, values: Values, sequential: Graph, ranks: Sequence[Graph]
    ) -> tuple[Graph, list[Graph]]:
        """The graphs with these sizes."""
        own = self.of_ranks(values)
        return with_numbers(sequential, values), [with_numbers(each, own) for each in ranks]


def symbols(declared: Mapping[str, Any], sequential: Graph, ranks: Sequence[Graph]) -> Symbols:
    """The symbols of graphs and their values; no values if no size is symbolic.

    Raises InputRelationError for a declaration that does not fit, and CannotSayError if no small
    values satisfy what is assumed.
    """
    found = Symbols(_texts(declared), _of_ranks(declared))
    own = [name for name in symbols_of(ranks) if name not in found.ranks]
    names = sorted({*symbols_of([sequential]), *own})
    try:
        used = [(names_in(each), each) for each in (*found.assume, *found.ranks.values())]
    except GraphError as error:
        raise InputRelationError(str(error)) from None
    for inside, text in used:
        if not inside <= set(names):
            raise InputRelationError(
                f"{shown(text)} speaks of {shown(min(inside - set(names)))}; the symbolic sizes of "
                f"the graphs are {', '.join(names) or 'none'}"
            )
    given = _given(declared, names)
    values = list(itertools.islice(_chosen(found, names, given), COUNT)) if names else []
    if names and not values:
        raise CannotSayError(
            f"no values of {', '.join(names)} between {_SMALLEST} and {_LARGEST} satisfy "
            f"{'; '.join(found.assume)}; give some with `values`"
        )
    return Symbols(found.assume, found.ranks, tuple(values))


def _chosen(
    found: Symbols, names: Sequence[str], given: Mapping[str, Sequence[int]]
) -> Iterator[dict[str, int]]:
    """Values of all sizes that satisfy the assumptions; no size has one value twice if it can."""
    tried: list[dict[str, int]] = []
    attempts = itertools.count()
    for distinct in (True, False):
        while True:
            used = [set() if name in given or not distinct else {each[name] for each in tried}
                    for name in names]  # fmt: skip
            candidates = [
                [
                    each
                    for each in given.get(name, range(_SMALLEST, _LARGEST + 1))
                    if each not in own
                ]
                for name, own in zip(names, used, strict=True)
            ]
            values = _first(found, names, candidates, tried, distinct, attempts)
            if values is None:
                break
            tried.append(values)
            yield values


def _first(
    found: Symbols,
    names: Sequence[str],
    candidates: Sequence[Sequence[int]],
    tried: Sequence[Values],
    distinct: bool,
    attempts: Iterator[int],
) -> dict[str, int] | None:
    """The first values that are not tried yet; distinct ones of each size are preferred."""
    for numbers in itertools.product(*candidates):
        if next(attempts) > _ATTEMPTS:
            return None
        values = dict(zip(names, numbers, strict=True))
        apart = len(set(numbers)) == len(numbers) or not distinct
        if apart and values not in tried and _satisfied(found, values):
            return values
    return None


def _satisfied(found: Symbols, values: Values) -> bool:
    try:
        return found.holds(values) and min(found.of_ranks(values).values(), default=1) > 0
    except GraphError:
        return False


def _texts(declared: Mapping[str, Any]) -> tuple[str, ...]:
    given = declared.get("assume") or ()
    texts = [given] if isinstance(given, str) else given
    if not isinstance(texts, list | tuple) or not all(isinstance(each, str) for each in texts):
        raise InputRelationError(f"assume is {shown(given)}; give a list such as [u0 % 4 == 0]")
    return tuple(texts)


def _of_ranks(declared: Mapping[str, Any]) -> dict[str, str]:
    given = declared.get("ranks") or {}
    if not isinstance(given, Mapping) or not all(isinstance(each, str) for each in given):
        raise InputRelationError(f"ranks is {shown(given)}; give a mapping such as {{s0: s0 // 2}}")
    return {name: str(text) for name, text in given.items()}


def _given(declared: Mapping[str, Any], names: Sequence[str]) -> dict[str, list[int]]:
    given = declared.get("values") or {}
    if not isinstance(given, Mapping):
        raise InputRelationError(
            f"values is {shown(given)}; give a mapping such as {{u0: [8, 12]}}"
        )
    found: dict[str, list[int]] = {}
    for name, value in given.items():
        numbers = value if isinstance(value, list | tuple) else [value]
        right = numbers and all(type(each) is int and each > 1 for each in numbers)
        if name not in names or not right:
            raise InputRelationError(
                f"values has {shown(name)}: {shown(value)}; give integers above 1 for "
                f"{', '.join(names) or 'nothing: no size is symbolic'}"
            )
        found[name] = list(numbers)
    return found
