"""Where the decisions of an exact run come from: comparisons, clamps, maxima, top-k and `.item()`.

Residues have no order, so a run on exact numbers cannot decide whether x > 0.  A run of the same
program on real numbers can: `Doubles` records each decision in `Decisions`, and `Residues` takes
the decision of the same place.  What the exact run shows then holds for all inputs that decide
alike.  A decision is what the real operator returns: a mask, indices, or a Python number.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from pytest_trainsafe.arithmetic.errors import UndecidedError

Shapes = tuple[tuple[int, ...], ...]


class DecisionSource(Protocol):
    """Answers the questions of one exact run, in the order in which they are asked."""

    def take(self, name: str, arguments: Sequence[torch.Tensor]) -> Any:
        """The decision `name`, such as "gt", on packed `arguments`; raises UndecidedError."""


class Undecided:
    """The source without decisions: the first question ends the run."""

    def take(self, name: str, arguments: Sequence[torch.Tensor]) -> Any:
        raise UndecidedError(
            f"the decision {name!r} needs the order of real numbers, which exact numbers do not "
            "have; run the program on Doubles first and pass its decisions to Residues"
        )


@dataclass(slots=True)
class Asked:
    """A function of the question that answers it."""

    answer: Callable[[str, Sequence[torch.Tensor]], Any]

    def take(self, name: str, arguments: Sequence[torch.Tensor]) -> Any:
        return self.answer(name, arguments)


@dataclass(slots=True)
class Decisions:
    """The decisions of one run in their order; recorded by one run, taken by others.

    `replay()` is the source for one further run.
    """

    taken: list[tuple[str, Shapes, Any]] = field(default_factory=list)

    def record(self, name: str, arguments: Sequence[torch.Tensor], decision: Any) -> None:
        kept = decision.clone() if isinstance(decision, torch.Tensor) else decision
        self.taken.append((name, _shapes(arguments), kept))

    def replay(self) -> Replay:
        return Replay(self)


@dataclass(slots=True)
class Replay:
    """Answers with the decisions of another run, place by place."""

    decisions: Decisions
    place: int = 0

    def take(self, name: str, arguments: Sequence[torch.Tensor]) -> Any:
        if self.place >= len(self.decisions.taken):
            raise UndecidedError(
                f"decision {self.place} ({name}) was not taken by the run on real numbers, which "
                f"took {len(self.decisions.taken)}; both runs must execute the same operators"
            )
        recorded, shapes, decision = self.decisions.taken[self.place]
        asked = _shapes(arguments)
        if (recorded, shapes) != (name, asked):
            raise UndecidedError(
                f"decision {self.place} is {name} of shapes {asked}, but {recorded} of shapes "
                f"{shapes} in the run on real numbers; both runs must execute the same operators"
            )
        self.place += 1
        return decision.clone() if isinstance(decision, torch.Tensor) else decision

    def finish(self) -> None:
        """Raises UndecidedError if a decision of the run on real numbers was not asked for."""
        taken = self.decisions.taken
        if self.place < len(taken):
            name, shapes, _ = taken[self.place]
            raise UndecidedError(
                f"the run on exact numbers took {self.place} decisions of the {len(taken)} that "
                f"the run on real numbers took; the next one is {name} of shapes {shapes}; both "
                "runs must execute the same operators"
            )


def _shapes(arguments: Sequence[torch.Tensor]) -> Shapes:
    return tuple(tuple(each.shape) for each in arguments)
