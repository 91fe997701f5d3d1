"""The layout of reports: labelled rows of plain text of at most 100 columns, and their writer."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from typing import TYPE_CHECKING

from pytest_trainsafe.printable import printable

if TYPE_CHECKING:
    import pytest

WIDTH = 100
LABEL = 14


def head(text: str) -> list[str]:
    """The headline, wrapped."""
    return wrap(text, WIDTH, indent="  ")


def row(label: str, text: str, wrapped: bool = True) -> list[str]:
    """The lines of a labelled row; none if `text` is empty."""
    if not text:
        return []
    pieces = wrap(text, WIDTH - LABEL - 2) if wrapped else [text]
    pad = " " * (2 + LABEL)
    if len(label) >= LABEL:  # a long label gets a line of its own
        return [f"  {label}", *(pad + piece for piece in pieces)]
    return [f"  {label:<{LABEL}}{pieces[0]}", *(pad + piece for piece in pieces[1:])]


def wrap(text: str, width: int, indent: str = "") -> list[str]:
    """Wraps a text to lines of at most `width` characters; longer words are not broken."""
    return textwrap.wrap(
        text, width, break_long_words=False, break_on_hyphens=False, subsequent_indent=indent
    )


def times_text(times: float) -> str:
    """How many times too large an error is: `13`, `130 000`, `6e+11`."""
    if times < 100:
        return f"{times:.2g}"
    if times < 1e9:
        return f"{float(f'{times:.2g}'):,.0f}".replace(",", " ")
    return f"{times:.0e}"


def write_lines(reporter: pytest.TerminalReporter, lines: Iterable[str]) -> None:
    """Writes lines to the terminal, escaped after they were wrapped: a word may begin a line."""
    for line in lines:
        reporter.write_line(printable(line))
