"""An invariant: a rule of training, when it applies, and the evidence for it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from pytest_trainsafe.judge.learn.conditions import ALWAYS, Precondition
from pytest_trainsafe.trace.observed.events import Plain


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """A relation between named things: what a rule claims, without when it applies.

    Made by `hypothesis`, so that equal claims are equal.
    """

    relation: str
    params: tuple[tuple[str, Plain], ...]

    def __getitem__(self, name: str) -> Plain:
        return next((value for key, value in self.params if key == name), None)

    def text(self, name: str) -> str:
        """A parameter that is a text; "" if there is none."""
        value = self[name]
        return value if isinstance(value, str) else ""

    @property
    def order(self) -> tuple[str, str]:
        """A key that sorts hypotheses in the same way on every machine."""
        return self.relation, repr(self.params)


def hypothesis(relation: str, **params: Plain) -> Hypothesis:
    """A hypothesis with these parameters, sorted by name."""
    return Hypothesis(relation, tuple(sorted(params.items())))


@dataclass(frozen=True, slots=True)
class Support:
    """The evidence of one program: how many examples kept the rule where it applies."""

    program: str
    examples: int


@dataclass(frozen=True, slots=True)
class Invariant:
    """A hypothesis, its precondition and its evidence, sorted by program.

    `within` has the values that fields of the context had in its examples: an example with
    another value is not judged, since nothing is known about it.
    """

    claim: Hypothesis
    precondition: Precondition = ALWAYS
    support: tuple[Support, ...] = ()
    within: tuple[tuple[str, tuple[Plain, ...]], ...] = ()

    @property
    def id(self) -> str:
        """A stable name: the relation and a hash of what is claimed, not of the evidence."""
        digest = hashlib.blake2b(repr(self.claim.order).encode(), digest_size=5).hexdigest()
        return f"{self.claim.relation}-{digest}"

    @property
    def examples(self) -> int:
        """Examples of all programs."""
        return sum(each.examples for each in self.support)

    @property
    def programs(self) -> int:
        """Number of programs with an example."""
        return sum(each.examples > 0 for each in self.support)
