"""Text that ranks produce, made safe to send, to print and to keep: encodable, and of bounded size.

Called by the ranks before a text leaves them, and by the parent for what it prints.
"""

from __future__ import annotations

#: Characters of an exception's own text.
ERROR_LIMIT = 2_000
#: Characters of a traceback, with everything that is chained to it.
TRACEBACK_LIMIT = 40_000
#: Characters of one line of a message.
LINE_LIMIT = 4_000
#: Characters of a whole message.
MESSAGE_LIMIT = 100_000


def cut(text: str, limit: int) -> str:
    """The text, or its start and end with a note that says how many characters are left out."""
    if len(text) <= limit:
        return text
    head, tail = limit * 2 // 3, limit // 3
    return f"{text[:head]} [... {len(text) - head - tail} characters cut ...] {text[-tail:]}"


def cut_lines(text: str, limit: int = LINE_LIMIT) -> str:
    """The text with each of its lines cut to the limit."""
    if len(text) <= limit:
        return text
    return "\n".join(cut(line, limit) for line in text.split("\n"))


def encodable(text: str) -> str:
    """The text with lone surrogates, which UTF-8 cannot encode, as escapes: `\\udc80`."""
    return str.encode(text, "utf-8", "backslashreplace").decode("utf-8")
