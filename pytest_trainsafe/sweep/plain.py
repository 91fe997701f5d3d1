"""Checks that a marker's arguments are plain values of bounded size, which ranks can receive."""

from __future__ import annotations

from collections.abc import Mapping

from pytest_trainsafe.core.cut_text import is_encodable
from pytest_trainsafe.core.usage import excerpt, shown

#: The maximum number of values in all arguments together, their maximum nesting depth, and the
#: maximum length of their text.  Reports print arguments, and cache keys contain them.
MAX_VALUES, MAX_DEPTH, MAX_TEXT = 100_000, 32, 1_000_000
#: The maximum number of bits of an integer, in msgpack as in numpy.
MAX_BITS = 64

_SMALLER = "put large values into a file and give its path"


def why_not_plain(arguments: Mapping[str, object]) -> str | None:
    """Why arguments cannot be sent to the ranks, naming the invalid argument; None if they can.

    A value that occurs twice counts twice, because it is sent twice.
    """
    count = characters = 0
    for name, argument in arguments.items():
        pending = [(argument, 0)]
        characters += len(name)
        reason = _unencodable(name)
        while pending and reason is None:
            value, depth = pending.pop()
            count += 1
            reason = _why_not(value, depth)
            if isinstance(value, str):
                characters += len(value)
            elif isinstance(value, dict):
                characters += sum(len(key) for key in value if isinstance(key, str))
                pending += [(entry, depth + 1) for entry in value.values()]
            elif isinstance(value, (list, tuple)):
                pending += [(entry, depth + 1) for entry in value]
            if count + len(pending) > MAX_VALUES:
                reason = f"arguments hold at most {MAX_VALUES} values in all; {_SMALLER}"
            elif characters > MAX_TEXT:
                reason = f"arguments hold at most {MAX_TEXT} characters in all; {_SMALLER}"
        if reason is not None:
            return f"{excerpt(name)}={shown(argument)} cannot be sent to the ranks; {reason}"
    return None


def _why_not(value: object, depth: int) -> str | None:
    """Why a value cannot be sent, not considering the values that it contains."""
    if isinstance(value, (list, tuple, dict)):
        if depth >= MAX_DEPTH:
            return f"it is nested more than {MAX_DEPTH} deep, or contains itself"
        for key in value if isinstance(value, dict) else ():
            if not isinstance(key, str):
                return f"the keys of a dict must be text, and {shown(key)} is not; put it in quotes"
            if _unencodable(key):
                return _unencodable(key)
        return None
    if isinstance(value, int) and type(value) is int and value.bit_length() > MAX_BITS:
        return f"an integer has at most {MAX_BITS} bits"
    if isinstance(value, str) and type(value) is str:
        return _unencodable(value)
    if value is None or type(value) in (bool, int, float):
        return None
    return "give None, bool, int, float, str, or lists and dicts of them"


def _unencodable(text: str) -> str | None:
    if is_encodable(text):
        return None
    return f"the text {shown(text)} contains a lone surrogate, which UTF-8 cannot encode"
