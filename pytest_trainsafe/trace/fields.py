"""Checks fields of events beyond their types: texts, lines and states of random generators."""

from __future__ import annotations

import re
from collections.abc import Iterable

#: The longest text of an event, in characters.
_LONGEST = 4096

_STATE = re.compile(r"[0-9a-f]{16}(\.[0-9]{1,20}(\.[0-9a-f]{8})?)?", re.ASCII)
_LINE = re.compile(r".+:[0-9]{1,9}", re.DOTALL | re.ASCII)


def fault_of_fields(
    texts: Iterable[str], lines: Iterable[str] = (), states: Iterable[str] = ()
) -> str:
    """The first fault: a text that is too long, an invalid line or state; "" if all are valid."""
    if any(len(text) > _LONGEST for text in texts):
        return f"it has a text of more than {_LONGEST} characters"
    if any(line and not _LINE.fullmatch(line) for line in lines):
        return "it has a malformed file and line"
    for state in states:
        if not _STATE.fullmatch(state):
            return f"it has a malformed state: {state[:80]!r}"
    return ""
