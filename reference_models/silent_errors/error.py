"""What the catalogue says of one silent error.  Does not import torch."""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Literal

#: Where the root cause lies.
Place = Literal["user code", "framework", "compiler", "hardware or driver"]

#: When it acts: before the first step, in a step, or after the last one.
Trigger = int | Literal["start", "end"]


@dataclass(frozen=True, slots=True)
class SilentError:
    """One error: where it was reported, what goes wrong, when, and what names its cause.

    `name` is its identifier, `number` that of TrainCheck's table: "B1" of Table 3, "" of Table 5.
    `sources` are public descriptions.  `causes` are `fnmatch` patterns of the APIs and variables
    of which a report that names one has named the true cause, as observed tables call them.
    `judges` are those expected to see it, the best first; "launch" is the comparison of the ranks'
    collectives that supervises every group.
    `axis` is "" for one process; else the program takes a context and runs on two ranks along it.
    `raises` is the exception that the faulty program ends in, in a rank after its patience.
    """

    name: str
    number: str
    what: str
    sources: tuple[str, ...]
    place: Place
    module: str
    trigger: Trigger
    causes: tuple[str, ...]
    judges: tuple[Literal["learn", "compare", "replay", "launch"], ...] = ("learn",)
    axis: Literal["", "dp", "tp", "pp"] = ""
    raises: Literal["", "KeyError", "RuntimeError"] = ""

    def named(self, text: str) -> bool:
        """Whether an API or a variable of this name is the true cause's."""
        return any(fnmatchcase(text, cause) for cause in self.causes)
