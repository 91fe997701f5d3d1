"""Escapes text from programs and traces for the formats that interpret it.

No text that a program can choose, such as the name of a module or the message of an exception, may
become a workflow command, a link, an image or markup.
"""

from __future__ import annotations

from pytest_trainsafe.printable import printable

#: Characters that HTML or the Markdown of GitHub may interpret.
_MARKUP = frozenset("&<>\"'\\`*_{}[]()#+-.!|~@:$^=")


def command_data(text: str) -> str:
    """The text as the message of a workflow command: `%`, CR and LF are percent-encoded."""
    return printable(text).replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def command_property(text: str) -> str:
    """The text as a property of a workflow command; `:` and `,` are percent-encoded too."""
    return command_data(text).replace(":", "%3A").replace(",", "%2C")


def markdown(text: str) -> str:
    """The text as one line of Markdown, also for a table cell, with all markup escaped."""
    line = printable(text).replace("\n", " ").replace("\t", " ")
    return "".join(f"&#{ord(c)};" if c in _MARKUP else c for c in line)


def code(text: str) -> str:
    """The text as one line of inline code in Markdown, escaped so that it fits a table cell."""
    return f"<code>{markdown(text)}</code>"
