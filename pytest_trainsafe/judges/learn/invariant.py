"""An invariant: a rule of training, when it applies, and the evidence for it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

from pytest_trainsafe.judges.learn.conditions import ALWAYS, Features, Mark, Precondition
from pytest_trainsafe.judges.learn.events.events import Plain


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """What a rule claims, without its precondition: a relation and the values of its parameters.

    Create it with `hypothesis`, which sorts the parameters, so that equal claims compare equal.
    """

    relation: str
    params: tuple[tuple[str, Plain], ...]
    _values: dict[str, Plain] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_values", dict(self.params))

    def __getitem__(self, name: str) -> Plain:
        return self._values.get(name)

    def text(self, name: str) -> str:
        """The value of a parameter if it is a string, else ""."""
        value = self._values.get(name)
        return value if isinstance(value, str) else ""

    @property
    def order(self) -> tuple[str, str]:
        """A key that sorts hypotheses in the same way on every machine."""
        return self.relation, repr(self.params)


def hypothesis(relation: str, **params: Plain) -> Hypothesis:
    """A Hypothesis with these parameters, which are sorted by name."""
    return Hypothesis(relation, tuple(sorted(params.items())))


@dataclass(frozen=True, slots=True)
class Support:
    """The evidence of one program: how many of its examples meet the precondition and pass.

    `settings` has pairs of a configuration of the program (`ObservedRun.setting`) and the number of
    such examples in it, sorted by configuration.
    """

    program: str
    settings: tuple[tuple[str, int], ...]

    @property
    def examples(self) -> int:
        """Number of examples in all configurations."""
        return sum(examples for _, examples in self.settings)


@dataclass(frozen=True, slots=True)
class Invariant:
    """A claim, the precondition under which it holds, and its evidence, sorted by program.

    `within` has fields, such as "phase", and the values that each had in the examples that the
    invariant was learned from.  An example with another value is not judged.  `example` is a line
    on a record that keeps the claim, "" if none was noted.
    """

    claim: Hypothesis
    precondition: Precondition = ALWAYS
    support: tuple[Support, ...] = ()
    within: tuple[tuple[str, tuple[Plain, ...]], ...] = ()
    example: str = field(default="", compare=False)

    def in_context(self, features: Features) -> bool:
        """Whether an example has, in each field of `within`, one of the values listed there.

        A field in which the records of the example differ does not count: only the precondition
        reads it.
        """
        for name, values in self.within:
            value = features.get(name, Mark.SAME)
            if not isinstance(value, Mark) and value not in values:
                return False
        return True

    @property
    def id(self) -> str:
        """A stable name: the relation and a hash of the claim, whatever the evidence."""
        digest = hashlib.blake2b(repr(self.claim.order).encode(), digest_size=5).hexdigest()
        return f"{self.claim.relation}-{digest}"

    @property
    def examples(self) -> int:
        """Number of examples of all programs."""
        return sum(each.examples for each in self.support)

    @property
    def programs(self) -> int:
        """Number of programs that have an example."""
        return sum(each.examples > 0 for each in self.support)
