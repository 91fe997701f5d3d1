"""A finished Run, and what its ranks return besides its trace."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pytest_trainsafe.launch import GroupResult
from pytest_trainsafe.record.reads.notes import Notes, checked
from pytest_trainsafe.trace.reader import Trace


@dataclass(frozen=True, slots=True)
class Run:
    """A finished Run: its Trace, and seconds by stage (launch, train).

    `cache_key` is the cache key under which the Run was looked up, or "" if the cache was not used;
    `reused` is whether the cache had the Run.  `notes` says what the program read; it is empty
    unless this process made the Run and stored it in the cache.  `files` is the folder with the
    files of the ranks, such as their output; None if they are unknown.
    """

    trace: Trace
    seconds: Mapping[str, float]
    cache_key: str = ""
    reused: bool = False
    notes: Notes = field(default_factory=Notes)
    files: Path | None = None


@dataclass(frozen=True, slots=True)
class Recorded:
    """Data on a Run besides its trace: seconds by stage, what its program read, and its folder.

    The folder has the files of the Run's ranks.
    """

    seconds: Mapping[str, float]
    notes: Notes
    files: Path

    @classmethod
    def of(cls, result: GroupResult) -> Recorded:
        """The data that the ranks of a finished group return."""
        train = max(value["seconds"] for value in result.values)
        seconds = {"launch": result.seconds - train, "train": train}
        notes = checked(value.get("noted") for value in result.values)
        return cls(seconds, notes, result.folder)
