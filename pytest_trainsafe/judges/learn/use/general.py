"""Chooses the invariants that hold for programs in general, for the packs that are shipped.

`inference` keeps all invariants that the runs show, and a project reviews them for its own
programs.  A shipped pack is used on programs for which nobody reviewed it.  Therefore an invariant
of such a pack must meet these conditions as well:

- its APIs belong to the libraries that packs can observe;
- authors do not choose freely whether to satisfy it;
- three programs satisfy it in each scenario of its precondition, each of them more than once;
- no program violates it if it is learned from all other programs;
- its precondition reads the context of training and not the arguments of a call;
- the values that it compares varied in the runs, so that it could have failed;
- if it claims an order of calls in a step, it holds in programs that mark their steps and in
  programs whose steps end with the optimizer's step;
- it is not about calls between APIs of one library, about the results of an operator, about
  counters of the observer, or about how many data each rank has.

If two invariants differ only in their API, and one API always calls the other, only the invariant
of the inner API is kept.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from pytest_trainsafe.judges.learn.columns.frame import Frame, Records
from pytest_trainsafe.judges.learn.conditions import Precondition
from pytest_trainsafe.judges.learn.events.events import ACTIVE
from pytest_trainsafe.judges.learn.events.table import REQUIRES_GRAD
from pytest_trainsafe.judges.learn.evidence import Counts, Evidence, together
from pytest_trainsafe.judges.learn.inference.select import (
    confidence,
    invariant_of,
    without_implied,
)
from pytest_trainsafe.judges.learn.invariant import Hypothesis, Invariant, hypothesis
from pytest_trainsafe.judges.learn.names import LIBRARIES, is_architecture
from pytest_trainsafe.judges.learn.relation import CHOICE, Relation
from pytest_trainsafe.judges.learn.run import ObservedRun, Source

#: The least number of programs that keep an invariant, and of its examples in one run of each.
PROGRAMS, EXAMPLES = 3, 2
#: A precondition has no more conditions than this.
CONDITIONS = 4
#: The confidence of an invariant in a program that it was not learned from.
CONFIDENCE = 0.8
#: The least prior of an invariant: those with a lower one are habits, or hold by chance.
PRIOR = CHOICE

#: Counters that the observer itself increments: no program can violate a claim on them.
_COUNTED = {("loader", "epoch"), ("loader", "batches")}
#: Fields of a call's object that say in which mode it is called.
_MODES = {"self.has_gradients", "self.zero_rate", "self.training"}

#: Relations that compare a value with a value, which says nothing if the value never varies.
_COMPARING = ("agreement", "consistent", "argument", "output")


@dataclass(frozen=True, slots=True)
class General:
    """The chosen invariants, and how many others were left out for which reason."""

    invariants: tuple[Invariant, ...]
    left_out: Mapping[str, int]


@dataclass
class _Claim:
    """The evidence that the observed runs give for or against one claim.

    `counts` has the numbers of passing and failing examples of each program.  `most` has the
    largest number of passing examples in one run of each program.  `values` has hashes of some of
    the values that the claim compares: a single hash means that they never varied.
    """

    counts: dict[str, Counts] = field(default_factory=dict)
    most: Counter[str] = field(default_factory=Counter)
    values: set[int] = field(default_factory=set)


def general(
    runs: Sequence[ObservedRun],
    relations: Mapping[str, Relation],
    counted: Collection[str] | None = None,
    marked: Collection[str] = (),
) -> General:
    """The invariants of runs that other programs are likely to satisfy.

    Only the programs in `counted` count as support; with None, all programs do.  A program that
    does not count may still violate a claim, which then needs a precondition that excludes the
    program.  `marked` names the programs that mark their steps with `ctx.step()`.
    """
    frames = [(run.program, [Frame(table) for table in run.tables]) for run in runs]
    chosen: list[Invariant] = []
    inside: set[tuple[str, str]] = set()
    left_out: Counter[str] = Counter()
    for name in sorted(relations):
        relation = relations[name]
        kept = []
        for claim, seen in sorted(_seen(relation, frames).items(), key=lambda each: each[0].order):
            made = _choose(relation, claim, seen, counted, marked)
            if not isinstance(made, Invariant):
                left_out[made] += 1
            elif _calls_itself(claim):
                if made.precondition.always:
                    inside.add((claim.text("api"), claim.text("inner")))
            else:
                kept.append(made)
        strong, implied = without_implied(kept, {name: relation})
        chosen += strong
        left_out["implied by a stronger invariant"] += len(implied)
    outer = _of_outer(chosen, inside)
    left_out["the same claim holds for an API that is always called inside"] += len(outer)
    chosen = [each for each in chosen if each.claim not in outer]
    invariants = tuple(sorted(chosen, key=lambda each: each.claim.order))
    return General(invariants, dict(sorted(left_out.items())))


def _seen(
    relation: Relation, runs: Sequence[tuple[str, Sequence[Frame]]]
) -> Mapping[Hypothesis, _Claim]:
    claims = sorted(
        {
            claim
            for _, frames in runs
            for claim in relation.hypotheses(frames)
            if _observable(claim) and not _internal(claim)
        },
        key=lambda claim: claim.order,
    )
    found: dict[Hypothesis, _Claim] = {claim: _Claim() for claim in claims}
    # Most claims are about what authors choose, and none of them is ever taken.
    claims = [claim for claim in claims if relation.prior(claim) >= PRIOR]
    for program, frames in runs if claims else ():
        examples = _Examples(found, frames)
        relation.examples(frames, claims, examples)
        for claim, counts in examples.counts().items():
            seen = found[claim]
            seen.counts[program] = together([seen.counts.get(program, []), counts])
            passed = sum(each for _, each, _ in counts)
            seen.most[program] = max(seen.most[program], passed)
    return found


class _Examples(Evidence):
    """Counts the examples of each claim in one run, and notes which values a claim compares."""

    def __init__(self, found: Mapping[Hypothesis, _Claim], frames: Sequence[Frame]) -> None:
        super().__init__()
        self._found, self._frames = found, frames

    def add(
        self,
        claim: Hypothesis,
        records: Records,
        passed: npt.NDArray[np.bool_],
        where: npt.NDArray[np.bool_] | None = None,
    ) -> None:
        super().add(claim, records, passed, where)
        values = self._found[claim].values
        if claim.relation in _COMPARING and len(values) < 2:
            rows = records.rows if where is None else records.rows[where]
            frame = records.frame or self._frame_of(claim, records)
            values.update(_values(claim, frame, records.of_calls, rows))

    def _frame_of(self, claim: Hypothesis, records: Records) -> Frame:
        """The Frame of the rank that made `records`, which are the calls of the claim's API."""
        api = claim.text("api")
        return next(
            frame
            for frame in self._frames
            if any(each.get(api) is records for each in (frame.groups, frame.attempts))
        )


def _values(
    claim: Hypothesis, frame: Frame, of_calls: bool, rows: npt.NDArray[np.int64]
) -> set[int]:
    """Up to two distinct hashes of the values that a claim compares in these rows of a table.

    Two are enough to show that the values vary.
    """
    if not len(rows):
        return set()
    if of_calls:
        group = frame.attempts[claim.text("api")]
        slot = group.slots.get(claim.text("place"))
        if slot is None:
            return set()
        values = slot[np.searchsorted(group.rows, rows)]
        name = claim.text("property") or "value"
    else:
        values, name = frame.changes["after"][rows], "value"
    if claim.text("form") in ("requires_grad", "no_grad"):
        keys = frame.bits(values, REQUIRES_GRAD).astype(np.uint64)
    else:
        keys, has = frame.keys(values, name)
        contents, tensor = frame.keys(values, "digest" if name == "value" else name)
        keys = np.concatenate([keys[has], contents[tensor]])
    return {int(key) for key in np.unique(keys)[:2]}


def _choose(
    relation: Relation,
    claim: Hypothesis,
    seen: _Claim,
    counted: Collection[str] | None,
    marked: Collection[str],
) -> Invariant | str:
    """The invariant of a claim for a shipped pack, or a text that says why it is left out."""
    if relation.prior(claim) < PRIOR:
        return "authors choose it"
    made = invariant_of(relation, claim, _evidence(seen.counts))
    if isinstance(made, str):
        return made
    if confidence(made, relation) < CONFIDENCE or not _supported(made.precondition, seen, counted):
        return "too few programs"
    if ("in_step", (False,)) in made.within:
        return "seen only outside of steps"
    if not _of_context(made.precondition):
        return "the precondition is long, or refers to arguments or programs"
    if claim.relation in _COMPARING and len(seen.values) == 1:
        return "the value never varied"
    ordered = made.precondition.always and _marked_both_ways(seen, marked)
    if claim["form"] == "order" and not ordered:
        return "the order may depend on where a step ends"
    if not _holds_out(relation, claim, seen):
        return "a program that it was not learned from violates it"
    return made


def _evidence(counts: Mapping[str, Counts]) -> Mapping[Source, Counts]:
    """The counts of each program as evidence from its only configuration.

    A shipped pack is checked on other programs, whose configurations it does not know.
    """
    return {(program, ""): each for program, each in counts.items()}


def _supported(precondition: Precondition, seen: _Claim, counted: Collection[str] | None) -> bool:
    """Whether at least `PROGRAMS` programs satisfy a claim in each scenario of `precondition`.

    The precondition holds where all conditions of one of its scenarios do.  A program must be in
    `counted`, unless that is None, and satisfy at least `EXAMPLES` examples in one of its runs.
    """
    repeated = {
        program
        for program, most in seen.most.items()
        if most >= EXAMPLES and (counted is None or program in counted)
    }
    for part in precondition.any_of:
        alone = Precondition((part,))
        programs = {
            program
            for program in repeated
            if any(passed and alone.holds(each) for each, passed, _ in seen.counts[program])
        }
        if len(programs) < PROGRAMS:
            return False
    return True


def _marked_both_ways(seen: _Claim, marked: Collection[str]) -> bool:
    """Whether one program that satisfies the claim marks its steps, and another one does not."""
    programs = {name for name, most in seen.most.items() if most}
    return bool(programs & set(marked)) and not programs <= set(marked)


def _of_outer(
    chosen: Sequence[Invariant], inside: Collection[tuple[str, str]]
) -> Collection[Hypothesis]:
    """The claims about an outer API that hold as well for an inner API, which it always calls.

    `inside` has the pairs of an outer and an inner API.  The claim about the inner API must be
    supported by at least as many programs.
    """
    known = {each.claim: each for each in chosen}
    implied = set()
    for each in chosen:
        for api, inner in inside:
            params = {name: inner if value == api else value for name, value in each.claim.params}
            other = known.get(hypothesis(each.claim.relation, **params))
            if other is not None and other is not each and other.programs >= each.programs:
                implied.add(each.claim)
    return implied


def _of_context(precondition: Precondition) -> bool:
    count = sum(map(len, precondition.any_of))
    return count <= CONDITIONS and not any(
        # A condition on the number of ranks separates programs, not contexts of training.
        field == "distributed" or field.startswith(("arg.", "self.", ACTIVE))
        for field in precondition.fields - _MODES
    )


def _holds_out(relation: Relation, claim: Hypothesis, seen: _Claim) -> bool:
    """Whether each program satisfies the claim's invariant, learned from the other programs."""
    for program, counts in seen.counts.items():
        failing = [features for features, _, failed in counts if failed]
        if not failing:
            continue
        others = {name: each for name, each in seen.counts.items() if name != program}
        made = invariant_of(relation, claim, _evidence(others))
        if (
            isinstance(made, Invariant)
            and confidence(made, relation) >= CONFIDENCE
            and any(
                made.precondition.holds(features) and made.in_context(features)
                for features in failing
            )
        ):
            return False
    return True


def _apis(claim: Hypothesis) -> list[str]:
    return [claim.text(name) for name in ("api", "inner") if claim.text(name)]


def _observable(claim: Hypothesis) -> bool:
    return all(api.partition(".")[0] in LIBRARIES for api in _apis(claim))


def _calls_itself(claim: Hypothesis) -> bool:
    """Whether a claim says that an API of a library calls another API of the same library."""
    api, inner = claim.text("api"), claim.text("inner")
    return (
        claim.relation == "contain"
        and bool(inner)
        and api.partition(".")[0] == inner.partition(".")[0]
    )


def _internal(claim: Hypothesis) -> bool:
    """Whether a claim is about what a library does, and not about what a program does with it."""
    api = claim.text("api")
    if (claim.text("variable"), claim.text("attribute")) in _COUNTED:
        return True
    # Ranks may hold shares of the data that differ in size.
    if claim.relation == "consistent" and claim.text("variable") == "loader":
        return True
    # Scaled gradients may overflow; the scaler then skips the step.
    if claim["form"] == "finite" and claim["attribute"] == "grad":
        return True
    # Whether batches repeat depends on the data.
    if claim["form"] == "fresh" and claim.text("api").startswith("torch.utils.data."):
        return True
    # Private parts are details of a release.
    names = [*(part for name in _apis(claim) for part in name.split(".")), claim.text("attribute")]
    if any(name.startswith("_") and not name.endswith("__") for name in names):
        return True
    if claim.relation == "output":
        return is_architecture(api) or claim["form"] not in ("finite", "nonzero", "autocast")
    # What an object is set to is followed as a variable.
    settings = claim.text("place").startswith("self.")
    return claim.relation == "agreement" and (is_architecture(api) or settings)
