"""The catalogue's entry of one silent error. Does not import torch."""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Literal

#: Where the root cause lies.
Place = Literal["user code", "framework", "compiler", "hardware or driver"]

#: When the error first acts: before the first step, in the step of this number, or after the last.
Trigger = int | Literal["start", "end"]


@dataclass(frozen=True, slots=True)
class SilentError:
    """One silent error: where it was reported, what goes wrong, and how it can be recognised.

    `name` is its identifier, and `number` its number in TrainCheck's Table 3, such as "B1"; "" for
    an error of Table 5. `sources` are public descriptions. `module` is the module of its program,
    relative to this package. `trigger` is when the error first acts: "start" (before the first
    step), the number of a step, or "end" (after the last step). `causes` are `fnmatch` patterns of
    the names of APIs and variables, as the learner of invariants records them: a report with one of
    these names has found the true cause. `judges` are the judges that should find the error, the
    best one first; "launch" is the comparison of collectives between the ranks of a Run. `axis` is
    "" for a program of one process; otherwise the program takes a context and runs on two ranks
    along this axis. `raises` is the exception that ends the faulty program, or "". If the error
    makes ranks wait for each other, the exception comes after the number of seconds that the
    program's argument `patience` gives.
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
        """Return whether `text` names an API or a variable that counts as the true cause."""
        return any(fnmatchcase(text, cause) for cause in self.causes)
