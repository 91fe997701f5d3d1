"""Escapes text that a program chose, so that a terminal or a CI log shows it and does nothing else.

Such text is the name of a module, a parameter or a function, the text of an exception, or the
value of an axis.  It is kept as it is inside of this package, and escaped where it leaves it: by
the classes of errors and warnings (`errors.py`), by the writer of the terminal's lines
(`report/rows.py`), and in the properties of JUnit files (`sweep/point_summary.py`).
`report/run/escape.py` adds what workflow commands and Markdown interpret.
"""

from __future__ import annotations

import re

#: What the runner of GitHub Actions takes for a command in a log: `::` at the start of a line,
#: after blanks, and `##[` anywhere in it (`ActionCommand.cs` of actions/runner).
_COMMAND = re.compile(r"^([ \t]*):(?=:)|#(?=#\[)", re.MULTILINE)


def printable(text: str) -> str:
    """The text with all that is not ordinary text written as Python escapes it.

    Newlines and tabs are kept.  Control characters, also those that change the direction of text,
    lone surrogates and line ends other than a newline are escaped, and the first character of what
    GitHub Actions takes for a command.  Escaping twice is the same as escaping once.
    """
    plain = "".join(
        c if c in "\n\t" or c.isprintable() else ascii(c)[1:-1] for c in text.replace("\r\n", "\n")
    )
    return _COMMAND.sub(_escaped_start, plain)


def printable_line(text: str) -> str:
    """The text as one line: newlines and tabs are escaped too."""
    return printable(text.replace("\n", "\\n").replace("\t", "\\t"))


def _escaped_start(found: re.Match[str]) -> str:
    return "\\x23" if found[1] is None else f"{found[1]}\\x3a"
