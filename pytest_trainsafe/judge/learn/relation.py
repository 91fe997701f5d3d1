"""The interface of relations: what a rule of training can claim.

A relation proposes hypotheses from tables, counts their examples, and makes the checkers of its
invariants.  `registry` has the relations of the package and those that a project adds.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from pytest_trainsafe.judge.learn.columns.frame import Frame
from pytest_trainsafe.judge.learn.evidence import Examples
from pytest_trainsafe.judge.learn.invariant import Hypothesis, Invariant
from pytest_trainsafe.judge.learn.watch import Contexts, Watch
from pytest_trainsafe.trace.observed.events import Listener, Plain

#: The prior of what holds for the programs that it was learned from, and says little of others.
OWN = -1000


@dataclass(frozen=True, slots=True)
class Needs:
    """What must be observed for a check: API names (a `*` is any class) and kinds of variables.

    `names.patterns` has the names that calls of an API in `apis` may have.
    """

    apis: frozenset[str] = frozenset()
    variables: frozenset[tuple[str, str]] = frozenset()

    def __or__(self, other: Needs) -> Needs:
        return Needs(self.apis | other.apis, self.variables | other.variables)


@dataclass(frozen=True, slots=True)
class Explanation:
    """A rule in one sentence, without its precondition, and what usually breaks it."""

    sentence: str
    causes: str


class Relation(Protocol):
    """One kind of rule.  Instances are created without arguments."""

    #: The name in packs and in check codes ("learn:NAME").
    name: str
    #: Whether its examples have records of several ranks or objects.
    several: bool
    #: Whether the dtypes and graphs of arguments limit what its examples speak for.
    typed: bool

    def valid(self, claim: Hypothesis) -> bool:
        """Whether a claim from a file has parameters that the relation understands."""
        ...

    def hypotheses(self, frames: Sequence[Frame]) -> Iterable[Hypothesis]:
        """What a run suggests; `frames` has one table a rank."""
        ...

    def examples(
        self, frames: Sequence[Frame], claims: Collection[Hypothesis], found: Examples
    ) -> None:
        """Give every example of the hypotheses in a run."""
        ...

    def forbidden(self, claim: Hypothesis, field: str) -> bool:
        """Whether a precondition must not read this field, since it only restates the claim."""
        ...

    def anywhere(self, claim: Hypothesis) -> bool:
        """Whether what holds in one phase, mode or dtype holds in all, as far as is known."""
        ...

    def prior(self, claim: Hypothesis) -> int:
        """How many programs the form of a claim is worth as evidence.

        A rule that follows from what an API is needs fewer programs than one that authors may
        choose to break: from 2 for the former to -3 for the latter.
        """
        ...

    def weaker(self, claim: Hypothesis) -> Iterable[Hypothesis]:
        """Hypotheses that this one implies."""
        ...

    def redundant(self, found: Sequence[Invariant]) -> Collection[Hypothesis]:
        """Claims of invariants that several others of the relation imply together."""
        ...

    def contradicts(self, claim: Hypothesis, other: Hypothesis) -> bool:
        """Whether no example can keep both."""
        ...

    def needs(self, claim: Hypothesis) -> Needs:
        """What a check must observe."""
        ...

    def checker(self, watches: Sequence[Watch], contexts: Contexts) -> Listener | None:
        """A listener that gives each watch its examples; `contexts` has the features of metas.

        None for a relation between ranks: `examples` of all ranks' tables checks it afterwards.
        """
        ...

    def explain(self, claim: Hypothesis) -> Explanation:
        """The rule in plain words."""
        ...


class RelationBase:
    """What most relations have in common."""

    name = ""
    several = False
    typed = False
    #: The parameters of each form of claim: a type, or the allowed values.
    forms: Sequence[Mapping[str, type | tuple[Plain, ...]]] = ()

    def valid(self, claim: Hypothesis) -> bool:
        """Whether the parameters are those of one of the forms."""
        return any(_fits(dict(claim.params), form) for form in self.forms)

    def forbidden(self, claim: Hypothesis, field: str) -> bool:
        """No field is forbidden."""
        return False

    def anywhere(self, claim: Hypothesis) -> bool:
        """A rule speaks for the contexts that it was seen in."""
        return False

    def prior(self, claim: Hypothesis) -> int:
        """1: one program is enough evidence for a rule that few authors break on purpose."""
        return 1

    def weaker(self, claim: Hypothesis) -> Iterable[Hypothesis]:
        """Nothing is implied."""
        return ()

    def redundant(self, found: Sequence[Invariant]) -> Collection[Hypothesis]:
        """Nothing is redundant."""
        return ()

    def contradicts(self, claim: Hypothesis, other: Hypothesis) -> bool:
        """Nothing is contradicted."""
        return False


def _fits(params: Mapping[str, Plain], form: Mapping[str, type | tuple[Plain, ...]]) -> bool:
    return params.keys() == form.keys() and all(
        params[name] in allowed if isinstance(allowed, tuple) else type(params[name]) is allowed
        for name, allowed in form.items()
    )
