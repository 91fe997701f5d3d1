"""An observed run of a program, from which invariants are learned or on which they are checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pytest_trainsafe.judges.learn.events.table import Table

#: A program, and its configuration: `ObservedRun.program` and `setting`.
Source = tuple[str, str]


@dataclass(frozen=True)
class ObservedRun:
    """One execution of a program: the table of each rank, and the versions of the libraries.

    `program` is the name under which packs list the program as evidence.  Several runs of one
    program, with other seeds for example, have the same name and count as one program.  `setting`
    is the configuration of the program as a text, such as its Point, arguments and seed; "" if the
    program has only one.
    """

    program: str
    tables: Sequence[Table]
    versions: Mapping[str, str] = field(default_factory=dict)
    setting: str = ""

    @property
    def source(self) -> Source:
        """The program and its configuration, for which evidence is counted."""
        return self.program, self.setting

    @property
    def records(self) -> int:
        """Number of records of all ranks: entries and exits of calls, and changes."""
        return sum(table.records for table in self.tables)
