"""Located: the code at fault, as a localisation found it."""

from __future__ import annotations

from dataclasses import dataclass

from pytest_trainsafe.judges.compare.fault.clause import Clause, words


@dataclass(frozen=True, slots=True)
class Located:
    """The result of a localisation: rows of label and text.

    `source` is the "file:line" of the faulty code and `clauses` describe it, the first by what is
    at that line; both are empty if there is no single place.  `faults` holds the phase and the
    module or parameter of each fault, in order of dataflow.  `axis` is the axis without which the
    first fault does not occur, "" if there is none or more than one, and `not_axes` has those
    without which it occurs too.  `summed` has the axes over which the line `source` sums gradients,
    if it sums wrong ones alone.  `needs` has the axes that the fault needs together, if they are
    more than one.
    """

    rows: tuple[tuple[str, str], ...]
    source: str = ""
    clauses: tuple[Clause, ...] = ()
    faults: tuple[tuple[str, str], ...] = ()
    axis: str = ""
    not_axes: tuple[str, ...] = ()
    summed: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()

    @property
    def what(self) -> str:
        """The words of all clauses."""
        return words(self.clauses)
