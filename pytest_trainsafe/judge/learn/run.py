"""What inference learns from and checking checks: the tables of one program's ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pytest_trainsafe.trace.observed.table import Table


@dataclass(frozen=True)
class ObservedRun:
    """One execution of a program: the table of each rank, and the versions that it ran with.

    `program` names the program in provenance.  Several runs of one program (other seeds) have the
    same name and count as one program.
    """

    program: str
    tables: Sequence[Table]
    versions: Mapping[str, str] = field(default_factory=dict)

    @property
    def records(self) -> int:
        """Number of records of all ranks."""
        return sum(table.records for table in self.tables)
