"""Makes text from ranks safe to send, print and keep: encodable, and of bounded size.

Called by the ranks before they send a text, and by the parent for what it prints.
"""

from __future__ import annotations

#: Maximum number of characters of an exception's own text.
ERROR_LIMIT = 2_000
#: The same for a traceback, including those of chained exceptions.
TRACEBACK_LIMIT = 40_000
#: The same for one line of a message.
LINE_LIMIT = 4_000
#: The same for a whole message.
MESSAGE_LIMIT = 100_000


def cut(text: str, limit: int) -> str:
    """The text, or its start and end with a note of how many characters are left out."""
    if len(text) <= limit:
        return text
    head, tail = limit * 2 // 3, limit // 3
    return f"{text[:head]} [... {len(text) - head - tail} characters cut ...] {text[-tail:]}"


def cut_lines(text: str, limit: int = LINE_LIMIT) -> str:
    """The text with each line cut to the limit."""
    if len(text) <= limit:
        return text
    return "\n".join(cut(line, limit) for line in text.split("\n"))


def is_encodable(text: str) -> bool:
    """Whether UTF-8 can encode the text; it cannot encode lone surrogates."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def encodable(text: str) -> str:
    """The text with lone surrogates, which UTF-8 cannot encode, escaped: `\\udc80`."""
    return str.encode(text, "utf-8", "backslashreplace").decode("utf-8")
