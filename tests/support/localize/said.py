"""What a place of code at fault says, in one text."""

from __future__ import annotations

from pytest_trainsafe.judges.compare.fault.clause import words
from pytest_trainsafe.judges.compare.localize.code.lines import Place


def said(found: Place) -> tuple[str, str]:
    """The line of a place and the words of its clauses."""
    return found.source, words(found.clauses)
