"""Texts for error messages: quoted input, lists, and suggestions for misspelt names.

Messages quote input only through `shown` and `excerpt`: input may be huge, contain itself, or
hold terminal control characters.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice

from pytest_trainsafe.printable import printable_line

#: Maximum number of characters that a message quotes of one text, and of a whole collection.
MAX_SHOWN, _MAX_COLLECTION = 100, 300
#: Maximum number of quoted entries per collection, of nested levels, and of listed words.
_ENTRIES, _DEPTH, _MAX_LISTED = 6, 3, 40
#: A longer word is not treated as a misspelling of a known one.
_LONGEST_NAME = 100
#: How similar a misspelling of a known word is, as `difflib` measures it; and a short word of which
#: one letter of three is wrong ("fcl" for "fc1").
_SIMILAR, _ONE_OF_THREE = 0.7, 2 / 3
#: Maximum number of names in a list that says how many more there are.
MAX_NAMES = 3
#: This many significant digits distinguish any two float64 values.
MAX_DIGITS = 17
#: Larger integers are described by their size: CPython refuses to print more than 4 300 digits.
_MAX_BITS = 256

_BRACKETS: dict[type, tuple[str, str]] = {
    list: ("[", "]"),
    tuple: ("(", ")"),
    set: ("{", "}"),
    frozenset: ("{", "}"),
    dict: ("{", "}"),
}


def nearest(word: str, known: Iterable[str]) -> str:
    """`; did you mean 'tp'?` if a word in `known` is similar to `word`, else an empty string.

    `'pp' or 'tp'` if both are equally so.
    """
    close = close_to(word, known, _SIMILAR)
    return f"; did you mean {either(close)}?" if close else ""


def either(words: Sequence[str]) -> str:
    """`'a'`, `'a' or 'b'`, or `'a', 'b', 'c' (or 4 more)`."""
    *others, last = [repr(word) for word in words[:MAX_NAMES]]
    if len(words) > MAX_NAMES:
        return f"{', '.join([*others, last])} (or {len(words) - MAX_NAMES} more)"
    return f"{', '.join(others)} or {last}" if others else last


def close_to(word: str, known: Iterable[str], least: float = _ONE_OF_THREE) -> list[str]:
    """The words in `known` that are the most similar to `word`: several if they are equally so.

    `least` is the smallest similarity, from 0 to 1, as `difflib` measures it.
    """
    if len(word) > _LONGEST_NAME:
        return []
    import difflib  # only needed for an error

    words = list(dict.fromkeys(known))
    close = difflib.get_close_matches(word, words, n=max(1, len(words)), cutoff=least)
    if not close:
        return [each for each in words if sorted(each) == sorted(word)]  # "pt" for "tp"
    matcher = difflib.SequenceMatcher(b=word)

    def similarity(other: str) -> float:
        matcher.set_seq1(other)
        return matcher.ratio()

    return sorted(each for each in close if similarity(each) == similarity(close[0]))


def listing(words: Iterable[str]) -> str:
    """Words joined as `a, b, c`; of a long list only the start, and how many are left out."""
    every = list(words)
    more = [f"and {len(every) - _MAX_LISTED} more"] if len(every) > _MAX_LISTED else []
    return ", ".join([*map(excerpt, every[:_MAX_LISTED]), *more])


def excerpt(text: str, max_length: int = MAX_SHOWN) -> str:
    """A text for a message, without quotes: its start, with unprintable characters escaped."""
    start = printable_line(text[:max_length])
    return start if len(text) <= max_length else f"{start}... ({len(text)} characters)"


def shown(value: object) -> str:
    """`repr(value)` for a message: short, printable, and safe for any value.

    Collections are cut in depth, width and length.  An object of a class that is not Python's
    own is described by its class, because its `repr` may be of any length, or raise.
    """
    text = _shown(value, _DEPTH)
    if type(value) not in _BRACKETS or len(text) <= _MAX_COLLECTION:
        return text
    return f"{text[:_MAX_COLLECTION]}..."


def _shown(value: object, depth: int) -> str:
    # Test the exact class: a subclass may override `repr`, length or order.
    kind = type(value)
    if isinstance(value, (str, bytes)) and kind in (str, bytes):
        unit = "characters" if kind is str else "bytes"
        quoted = repr(value[:MAX_SHOWN])
        return quoted if len(value) <= MAX_SHOWN else f"{quoted}... ({len(value)} {unit})"
    if isinstance(value, int) and kind is int and value.bit_length() > _MAX_BITS:
        return f"an integer of about {value.bit_length() * 3 // 10} digits"
    if value is None or kind in (bool, int, float, complex):
        return repr(value)
    if isinstance(value, (list, tuple, set, frozenset, dict)) and kind in _BRACKETS:
        left, right = _BRACKETS[kind]
        return f"{left}{_entries(value, depth)}{right}"
    if issubclass(kind, type):
        return f"the class {excerpt(getattr(value, '__qualname__', '?'))}"
    return f"an object of type {excerpt(kind.__qualname__)}"


def _entries(value: Iterable[object], depth: int) -> str:
    """The inside of a collection's brackets."""
    if depth == 0:
        return "..."
    if isinstance(value, dict):
        pairs = islice(value.items(), _ENTRIES + 1)
        inside = [f"{_shown(k, depth - 1)}: {_shown(v, depth - 1)}" for k, v in pairs]
    else:
        inside = [_shown(entry, depth - 1) for entry in islice(value, _ENTRIES + 1)]
    return ", ".join(inside[:_ENTRIES] + ["..."] * (len(inside) > _ENTRIES))


def name_ranks(ranks: Sequence[int]) -> str:
    """`rank 3`, or `ranks 0, 2`."""
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}"


def in_print(
    value: complex | float | int | bool, other: complex | float | int | bool, digits: int = 9
) -> tuple[str, str]:
    """Two numbers as text, with `digits` significant digits, or more if these look the same.

    Nine digits distinguish any two float32 values.  Integers and booleans are written in full.
    """
    texts = _number(value, digits), _number(other, digits)
    while texts[0] == texts[1] and digits < MAX_DIGITS:
        digits += 1
        texts = _number(value, digits), _number(other, digits)
    return texts


def _number(value: complex | float | int | bool, digits: int) -> str:
    return str(value) if isinstance(value, int) else f"{value:.{digits}g}"


def first_few(names: Sequence[str]) -> str:
    """`a, b, c and 4 more`: the first names, and how many are left out."""
    more = f" and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else ""
    return ", ".join(names[:MAX_NAMES]) + more


def name_list(names: Sequence[str], noun: str) -> str:
    """`a`, `2 modules: a and b`, or `7 modules: a, b, c and 4 more`."""
    if len(names) == 1:
        return names[0]
    shown = list(names[:MAX_NAMES])
    rest = len(names) - len(shown)
    last = f"{rest} more" if rest else shown.pop()
    return f"{len(names)} {noun}s: {', '.join(shown)} and {last}"
