"""A Clause: words on code and the lines that they name.

A description of the code at fault is a sequence of clauses.  A report shows their words one after
the other; a page shows each line with what its clause says of it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

from pytest_trainsafe.core.code_files import relative

#: What is at the lines of a clause, where that decides which line is shown first, and with what.
Kind = Literal[
    "",
    "as due",  # makes the same change in the reference
    "backward",  # the program's own backward
    "call",  # a module calls another one
    "caller",  # calls the function at the line at fault
    "construction",  # of the optimizer
    "made",  # what a tensor, or a process group, is made by
    "odd call",  # the one call that makes the loss over another axis
    "set up",  # puts a module into its place
    "set up apart",  # the same, while other modules of the class agree
    "unwaited",  # a call is asynchronous; names no line
]


@dataclass(frozen=True, slots=True)
class Clause:
    """Words on code.

    `lines` has each "file:line" that the words name, in their order, with what to say beside that
    line, where its own place need not be repeated.  They need not be complete: a line of Python or
    of a framework, at which nothing can be changed, is in the words alone.
    """

    text: str
    lines: tuple[tuple[str, str], ...] = ()
    kind: Kind = ""

    def __str__(self) -> str:
        return self.text

    def beside(self, line: str) -> str:
        """What to say beside a line: all words if they do not name it."""
        return next((said for named, said in self.lines if named == line), self.text)

    def begun(self, words: str) -> Clause:
        """The same clause after other words."""
        lines = tuple((line, f"{words}{said}") for line, said in self.lines)
        return replace(self, text=f"{words}{self.text}", lines=lines)

    def called_at(self, caller: str) -> Clause:
        """The same clause with the line that led to the one that it names; "" adds nothing."""
        if not caller:
            return self
        by = f", called by {relative(caller)}"
        own = tuple((line, f"{said}{by}") for line, said in self.lines)
        led = f"{self.text}{by}"
        if self.lines:
            line, said = self.lines[0]
            led = f"calls {relative(line)}, where {said}"
        text = f"{self.text}, called at {relative(caller)}"
        return replace(self, text=text, lines=(*own, (caller, led)))


def at(words: str, line: str, *, by: str = " at ", more: str = "", kind: Kind = "") -> Clause:
    """The clause that something is at a line: `words`, `by`, the line, and `more`."""
    return Clause(f"{words}{by}{relative(line)}{more}", ((line, f"{words}{more}"),), kind)


def listed(
    words: str, items: Iterable[tuple[str, str]], *, by: str = " and ", kind: Kind = ""
) -> Clause:
    """The clause that lists things with their lines, such as calls, after `words`."""
    found = [*items]
    named = by.join(f"{item} at {relative(line)}" for item, line in found)
    return Clause(
        f"{words} {named}", tuple((line, f"{words} {item}") for item, line in found), kind
    )


def words(clauses: Iterable[Clause | str]) -> str:
    """Clauses in one text."""
    return "; ".join(map(str, clauses))
