"""The interface of relations: each is one kind of invariant, as "an argument is constant".

A relation proposes hypotheses from the tables of a run, finds their examples, and creates the
checkers of its invariants.  `registry` loads the relations of the package and of a project.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from pytest_trainsafe.judges.learn.columns.frame import Frame
from pytest_trainsafe.judges.learn.events.events import Listener, Plain, holder
from pytest_trainsafe.judges.learn.evidence import Examples
from pytest_trainsafe.judges.learn.invariant import Hypothesis, Invariant
from pytest_trainsafe.judges.learn.watch import Contexts, Watch

#: The prior of a claim that correct programs may violate.  The claim is checked only on the
#: programs from which it was learned.
OWN = -1000
#: The prior of a claim that most correct programs satisfy, but not all: it is checked on programs
#: from which it was not learned if seven programs satisfy it.  Whatever a claim's prior is, seven
#: configurations of one program count for its other configurations in the same way.
CHOICE = -4
#: The prior of a claim that may hold by chance in as many programs: no shipped pack contains it.
HABIT = -5


@dataclass(frozen=True, slots=True)
class Needs:
    """What must be observed for a check.

    `apis` has names of APIs, in which `*` stands for any class, as in "torch.optim.*.step";
    `names.patterns` gives the names that their calls may have.  `variables` has pairs of a kind of
    variable (`names.variable`) and an attribute.  `contents` has pairs of an API and one of its
    arguments or "result", whose tensors must be read: their hash, their norm, and whether they are
    zero or finite.  Of others, the shape, the dtype and the flags are enough.  None stands for all
    tensors in the calls of `apis`.
    """

    apis: frozenset[str] = frozenset()
    variables: frozenset[tuple[str, str]] = frozenset()
    contents: frozenset[tuple[str, str]] | None = None

    def __or__(self, other: Needs) -> Needs:
        return Needs(
            self.apis | other.apis,
            self.variables | other.variables,
            self.all_contents | other.all_contents,
        )

    @property
    def all_contents(self) -> frozenset[tuple[str, str]]:
        """The pairs of `contents`; if that is None, each API with "*", which means everything."""
        if self.contents is not None:
            return self.contents
        return frozenset((api, "*") for api in self.apis)


def contents_of(claim: Hypothesis) -> frozenset[tuple[str, str]]:
    """The contents (`Needs.contents`) that a claim on values of an API's calls compares."""
    reads = claim["property"] in ("digest", "norm") or claim["form"] in ("finite", "nonzero")
    places = [claim.text(name) for name in ("place", "of") if claim[name] is not None]
    return frozenset((claim.text("api"), holder(place)) for place in places if reads)


@dataclass(frozen=True, slots=True)
class Explanation:
    """A claim in one sentence, without its precondition, and what usually violates it."""

    sentence: str
    causes: str


class Relation(Protocol):
    """One kind of invariant, such as "an argument is constant".

    Instances are created without arguments.
    """

    #: The name in packs and in check codes ("learn:NAME").
    name: str
    #: Whether an example compares several records, such as those of two ranks.
    several: bool
    #: Whether an invariant is judged only for arguments whose dtype and requires_grad were seen
    #: when it was learned.
    typed: bool
    #: Whether claims name objects of one program.  Then runs of other programs are no evidence, and
    #: a claim is checked only on the programs from which it was learned.
    named: bool

    def valid(self, claim: Hypothesis) -> bool:
        """Whether a claim from a file has parameters that the relation understands."""
        ...

    def hypotheses(self, frames: Sequence[Frame]) -> Iterable[Hypothesis]:
        """The claims that a run suggests.  `frames` has the table of each rank."""
        ...

    def examples(
        self, frames: Sequence[Frame], claims: Collection[Hypothesis], found: Examples
    ) -> None:
        """Add every example of the claims in a run to `found`."""
        ...

    def forbidden(self, claim: Hypothesis, field: str) -> bool:
        """Whether a precondition must not read this field.

        This is so for a field whose condition would only restate the claim.
        """
        ...

    def anywhere(self, claim: Hypothesis) -> bool:
        """Whether a claim may be judged in phases, modes and dtypes in which it was not seen."""
        ...

    def prior(self, claim: Hypothesis) -> int:
        """Returns how credible a claim is before any program was observed, as a number.

        An invariant's confidence is computed as if prior - 1 more programs satisfied it.  1 is
        neutral.  2 is for a claim that follows from what the API does.  A lower number, which may
        be negative, requires more programs, because authors may choose to violate the claim.  With
        `OWN`, the claim is checked only on the programs from which it was learned.
        """
        ...

    def weaker(self, claim: Hypothesis) -> Iterable[Hypothesis]:
        """The claims that this claim implies."""
        ...

    def redundant(self, found: Sequence[Invariant]) -> Collection[Hypothesis]:
        """The claims of those invariants in `found` that follow from others in `found`."""
        ...

    def contradicts(self, claim: Hypothesis, other: Hypothesis) -> bool:
        """Whether no example can satisfy both claims."""
        ...

    def needs(self, claim: Hypothesis) -> Needs:
        """What must be observed so that the claim can be checked."""
        ...

    def checker(self, watches: Sequence[Watch], contexts: Contexts) -> Listener | None:
        """A listener that judges invariants while a process runs; None for relations between ranks.

        Each watch is for one invariant of this relation: the listener finds the examples of the
        invariant in the events and calls `Watch.example` or `Watch.judge` with them.  `contexts`
        computes the features of an event's meta variables.  A relation between ranks is checked
        after the run: `examples` then reads the tables of all ranks.
        """
        ...

    def explain(self, claim: Hypothesis) -> Explanation:
        """Explain the claim in plain words, with what usually violates it."""
        ...


class RelationBase:
    """A base class of relations, with the answers that most of them give."""

    name = ""
    several = False
    typed = False
    named = False
    #: The parameters of each form of claim: a type, or the allowed values.
    forms: Sequence[Mapping[str, type | tuple[Plain, ...]]] = ()

    def valid(self, claim: Hypothesis) -> bool:
        """Whether the names and values of the parameters fit one of `forms`."""
        return any(_fits(dict(claim.params), form) for form in self.forms)

    def forbidden(self, claim: Hypothesis, field: str) -> bool:
        """False: a precondition may read every field."""
        return False

    def anywhere(self, claim: Hypothesis) -> bool:
        """False: a claim is judged only in the contexts that it was seen in."""
        return False

    def prior(self, claim: Hypothesis) -> int:
        """1, the neutral number: the claim needs no additional programs as evidence.

        Few authors violate such a claim on purpose.
        """
        return 1

    def weaker(self, claim: Hypothesis) -> Iterable[Hypothesis]:
        """No claims: this claim implies no other."""
        return ()

    def redundant(self, found: Sequence[Invariant]) -> Collection[Hypothesis]:
        """No claims: none of the invariants follows from others."""
        return ()

    def contradicts(self, claim: Hypothesis, other: Hypothesis) -> bool:
        """False: no two claims contradict each other."""
        return False


def _fits(params: Mapping[str, Plain], form: Mapping[str, type | tuple[Plain, ...]]) -> bool:
    return params.keys() == form.keys() and all(
        params[name] in allowed if isinstance(allowed, tuple) else type(params[name]) is allowed
        for name, allowed in form.items()
    )
