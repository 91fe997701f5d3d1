"""What a user wrote about a sweep is wrong.  Raised here; `plugin` gives it to pytest."""

from __future__ import annotations

from collections.abc import Iterable


class SweepError(ValueError):
    """A sweep is declared wrongly; the message names the input, what is allowed, what to do."""


def nearest(word: str, known: Iterable[str]) -> str:
    """`; did you mean 'tp'?` where a known word is close to this one, else nothing."""
    import difflib  # only needed on the way to an error

    close = difflib.get_close_matches(word, list(known), n=1, cutoff=0.7)
    return f"; did you mean {close[0]!r}?" if close else ""


def listing(words: Iterable[str]) -> str:
    """Words as a sentence has them: `a, b, c`."""
    return ", ".join(words)
