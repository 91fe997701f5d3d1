"""A Case: one test at one Point, with everything its two Runs need.  Made by the sweep."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pytest_trainsafe.settings import Settings
from pytest_trainsafe.sweep.axes import DTYPES
from pytest_trainsafe.sweep.point import Point
from pytest_trainsafe.sweep.program import Program


@dataclass(frozen=True, slots=True)
class Case:
    """One test at one Point.

    `arguments` are what both Runs give the program, `candidate_arguments` what the candidate
    gives it (all of them, not only the differences).  `settings` has the marker's `seed`,
    `timeout` and `accept` in it.  `nodeid` names the test to rerun.
    """

    point: Point
    program: Program
    settings: Settings
    arguments: Mapping[str, object] = field(default_factory=dict)
    candidate_arguments: Mapping[str, object] = field(default_factory=dict)
    nodeid: str = ""

    @property
    def dtype(self) -> str:
        """The dtype of the recipe: the Point's, float32 where it names none."""
        return str(self.point.get("dtype", "float32"))

    @property
    def rungs(self) -> tuple[str, ...]:
        """The dtypes to judge in, in order: those asked for, or from float64 to the recipe's."""
        if self.settings.dtypes:
            return self.settings.dtypes
        ladder = ("float64", "float32", self.dtype)
        lowest = DTYPES.index(self.dtype)
        return tuple(d for d in dict.fromkeys(ladder) if DTYPES.index(d) <= lowest)
