"""What a localisation adds to a failure's report.  Made by `report.located_words`; plain data."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Located:
    """Rows of label and text; `source` is the "file:line" of the code at fault, `what` its name.

    Both are empty where there is no one place.  `faults` has the phase and the module or parameter
    of each fault, those earlier in dataflow first.
    """

    rows: tuple[tuple[str, str], ...]
    source: str = ""
    what: str = ""
    faults: tuple[tuple[str, str], ...] = ()
