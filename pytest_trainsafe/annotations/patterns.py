"""Finds the entry of an annotation file that applies to a name: the last one that matches it.

Called by `annotations/declared.py`.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Iterator, Sequence
from fnmatch import translate
from typing import Generic, TypeVar

from pytest_trainsafe.annotations.entries import is_glob

Entry = TypeVar("Entry")


def matches(pattern: str, name: str) -> bool:
    """Whether a pattern matches a dotted name or a dotted suffix of it.

    Patterns are those of `fnmatch`; in addition, # matches a number: `layers.#.fc1`.
    """
    expression = _compiled(pattern)
    return any(expression.match(suffix) for suffix in _suffixes(name))


@functools.lru_cache(maxsize=1024)
def _compiled(pattern: str) -> re.Pattern[str]:
    # `translate` escapes a # outside of brackets.  The quantifier is possessive, as `translate`'s
    # own groups are atomic, so that the expression does not backtrack.
    return re.compile(translate(pattern).replace(r"\#", "[0-9]++"))


class LastMatch(Generic[Entry]):
    """The entries of one section, by pattern.

    Plain names are looked up in a dict.  Only patterns with a wildcard are tried one by one;
    `fnmatch` compiles them to expressions that do not backtrack from one `*` into another.
    """

    def __init__(self, section: str, entries: Sequence[tuple[str, Entry]]) -> None:
        self._section = section
        self._entries = entries
        self._plain = {p: i for i, (p, _) in enumerate(entries) if not is_glob(p)}
        self._globs = [(i, _compiled(p)) for i, (p, _) in enumerate(entries) if is_glob(p)]
        self._found: dict[str, tuple[Entry, str] | None] = {}

    def find(self, name: str) -> tuple[Entry, str] | None:
        """The last entry that matches a name, and its location, such as "modules: linear_qkv"."""
        # Cached: called for every activation of every micro-batch.
        if name not in self._found:
            last = max(self._matching(name), default=None)
            self._found[name] = (
                None if last is None else (self._entries[last][1], self._where(last))
            )
        return self._found[name]

    def unmatched(self, names: Iterable[str]) -> list[str]:
        """The locations of the entries that match none of the names."""
        matched = {number for name in names for number in self._matching(name)}
        return [self._where(i) for i in range(len(self._entries)) if i not in matched]

    def _matching(self, name: str) -> Iterator[int]:
        for suffix in _suffixes(name):
            if suffix in self._plain:
                yield self._plain[suffix]
            for number, expression in self._globs:
                if expression.match(suffix):
                    yield number

    def _where(self, number: int) -> str:
        return f"{self._section}: {self._entries[number][0]}"


def _suffixes(name: str) -> Iterator[str]:
    levels = name.split(".")
    return (".".join(levels[start:]) for start in range(len(levels)))
