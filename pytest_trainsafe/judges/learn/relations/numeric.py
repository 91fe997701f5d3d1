"""Numeric: how a number or a norm changes.

A claim has one of five forms.  "grows": a counter never falls.  "counts": it goes up by one.
"change": a norm changes by at most `bound` times its earlier value.  "ratio": a norm is at most
`bound` times its earlier value.  "finite": all elements are finite.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence

import numpy as np

from pytest_trainsafe.judges.learn.check.checker import Checker, by_variable, variable_of
from pytest_trainsafe.judges.learn.columns.frame import Bools, Floats, Frame, Ints
from pytest_trainsafe.judges.learn.events.events import Change, Value
from pytest_trainsafe.judges.learn.events.slips import TEXTS
from pytest_trainsafe.judges.learn.events.table import FINITE, IS_TENSOR, NONE
from pytest_trainsafe.judges.learn.evidence import Examples
from pytest_trainsafe.judges.learn.features import number_of
from pytest_trainsafe.judges.learn.invariant import Hypothesis, hypothesis
from pytest_trainsafe.judges.learn.relation import CHOICE, OWN, Explanation, Needs, RelationBase
from pytest_trainsafe.judges.learn.watch import Contexts, Watch

#: Bounds are powers of ten, so that packs change little when programs are added.
_BOUNDS = {"change": (0.1, 1.0, 10.0), "ratio": (10.0, 100.0, 1000.0)}
_VARIABLE = {"variable": str, "attribute": str}
_COUNTS = ("grows", "counts")
#: Changes from a smaller norm are not compared: a bias that begins near zero grows by any factor.
_SMALLEST = 0.1
#: A bound is learned only if the values, times this factor, are within it.
MARGIN = 4.0


class Numeric(RelationBase):
    """The number, norm or finiteness of `attribute` of each `variable` follows a rule.

    `variable` is a kind of object, such as "optimizer.state".  `form` names the rule: "grows" is
    for a counter that never falls, for example, and "ratio" for a norm that grows by at most the
    factor `bound`.
    """

    name = "numeric"
    forms = (
        {**_VARIABLE, "form": (*_COUNTS, "finite")},
        {**_VARIABLE, "form": ("change",), "bound": _BOUNDS["change"]},
        {**_VARIABLE, "form": ("ratio",), "bound": _BOUNDS["ratio"]},
    )

    def hypotheses(self, frames: Sequence[Frame]) -> Iterable[Hypothesis]:
        """Proposes the claims that at least half of the comparable changes of a variable satisfy.

        A variable is a pair such as ("torch.nn.Parameter", "data").
        """
        for frame in frames:
            for name, rows in _changes(frame):
                for claim in _proposed(name):
                    passed, where = _passed(frame, rows, claim, MARGIN)
                    if where.any() and passed[where].mean() >= 0.5:
                        yield claim

    def examples(
        self, frames: Sequence[Frame], claims: Collection[Hypothesis], found: Examples
    ) -> None:
        """Adds an example for each change that can be compared.

        If the claim has a bound, the new norm or the change of the norm is first multiplied by
        `MARGIN` (`_passed`).
        """
        wanted: dict[tuple[str, str], list[Hypothesis]] = defaultdict(list)
        for claim in claims:
            wanted[claim.text("variable"), claim.text("attribute")].append(claim)
        for frame in frames:
            for name, rows in _changes(frame):
                if name in wanted:
                    records = frame.change_records(rows)
                    for claim in wanted[name]:
                        passed, where = _passed(frame, rows, claim, MARGIN)
                        found.add(claim, records, passed, where)

    def forbidden(self, claim: Hypothesis, field: str) -> bool:
        """Forbids preconditions on the value, which would only restate the claim."""
        return field == "value"

    def weaker(self, claim: Hypothesis) -> Iterable[Hypothesis]:
        """The claims that this claim implies.

        A bound implies every larger bound.  A counter that goes up by one ("counts") never falls
        ("grows").  A norm that is at most `bound` times its earlier value ("ratio") changes by at
        most `bound` times that value ("change").
        """
        form, bound = claim.text("form"), claim["bound"]
        name = claim.text("variable"), claim.text("attribute")
        if form == "counts":
            yield _claim(name, "grows")
        if form == "ratio" and bound in _BOUNDS["change"]:
            yield _claim(name, "change", bound)
        for larger in _BOUNDS.get(form, ()):
            if isinstance(bound, float) and larger > bound:
                yield _claim(name, form, larger)

    def prior(self, claim: Hypothesis) -> int:
        """How credible a claim is (`Relation.prior`).

        The number is low for bounds of norms, since norms depend on the model and the learning
        rate.  It is low for finite gradients, since gradients of a scaled loss may overflow.
        """
        if claim["form"] == "finite" and claim["attribute"] == "grad":
            return CHOICE
        if claim["form"] in _BOUNDS:
            if claim["attribute"] != "data":
                return OWN
            # Small parameters, such as biases, change by more than their norm.
            return CHOICE if claim["form"] == "change" else -1
        return 1 if claim["form"] == "finite" else 0

    def needs(self, claim: Hypothesis) -> Needs:
        """The check needs the variable of the claim."""
        name = claim.text("variable"), claim.text("attribute")
        return Needs(frozenset(), frozenset({name}))

    def checker(self, watches: Sequence[Watch], contexts: Contexts) -> Checker:
        """A listener that judges each change."""
        return _Checker(watches, contexts)

    def explain(self, claim: Hypothesis) -> Explanation:
        """The rule in plain words."""
        what = f"{claim['attribute']} of {claim['variable']}"
        form, bound = claim.text("form"), claim["bound"]
        said = {
            "grows": (f"{what} never falls", "a counter was reset or read from an old checkpoint"),
            "counts": (f"{what} goes up by one", "a step is counted twice or not at all"),
            "change": (
                f"the norm of {what} changes by at most {bound} times itself",
                "the learning rate or the gradient is too large",
            ),
            "ratio": (
                f"the norm of {what} is at most {bound} times what it was",
                "gradients accumulate or explode",
            ),
            "finite": (f"{what} is finite", "an overflow, or a division by zero"),
        }
        return Explanation(*said[form])


class _Checker(Checker):
    def __init__(self, watches: Sequence[Watch], contexts: Contexts) -> None:
        super().__init__(contexts)
        self._watches = by_variable(watches)

    def reads_calls(self, api: str) -> bool:
        return False

    def reads_changes(self, variable: tuple[str, str]) -> bool:
        return variable in self._watches

    def changed(self, change: Change) -> None:
        if change.changed:
            for watch in self._watches.get(variable_of(change), ()):
                passed = _judged(change.before, change.after, watch.claim)
                if passed is not None:
                    watch.example(lambda: self.of_change(change), passed, change)


def _changes(frame: Frame) -> Iterator[tuple[tuple[str, str], Ints]]:
    codes, changed = frame.variable_of_change, frame.changes["changed"]
    for code, name in enumerate(frame.variables):
        if name[1] in TEXTS:
            continue
        rows = np.flatnonzero((codes == code) & changed)
        if len(rows):
            yield name, rows


def _proposed(name: tuple[str, str]) -> Iterator[Hypothesis]:
    moment = name[0] == "optimizer.state" and name[1] != "step"
    for form in ("finite",) if moment else (*_COUNTS, "finite"):
        yield _claim(name, form)
    if name[0] == "optimizer.state":
        return  # A momentum may vanish and return, a moment may fall; what they update has bounds.
    for form, bounds in _BOUNDS.items():
        for bound in bounds:
            yield _claim(name, form, bound)


def _passed(frame: Frame, rows: Ints, claim: Hypothesis, margin: float) -> tuple[Bools, Bools]:
    """Which changes satisfy the claim, and which changes can be judged by it.

    `rows` are rows of `Table.changes`.  For the form "ratio" the new norm, and for the form
    "change" the change of the norm, is multiplied by `margin` and then compared with the bound.
    """
    before, after = (frame.changes[name][rows] for name in ("before", "after"))
    form = claim.text("form")
    if form == "finite":
        tensor = frame.bits(after, IS_TENSOR)
        return frame.bits(after, FINITE), tensor
    name = "value" if form in _COUNTS else "norm"
    old, has = frame.numbers(before, name)
    new, too = frame.numbers(after, name)
    where = has & too & (before != NONE)
    if name == "norm":
        where &= old > _SMALLEST
    with np.errstate(invalid="ignore", over="ignore"):
        return _kept(old, new, claim, margin) & where, where


def _judged(before: Value | None, after: Value, claim: Hypothesis) -> bool | None:
    """Whether a change satisfies the claim; None if it is no example of it."""
    form = claim.text("form")
    if form == "finite":
        return None if after.tensor is None else after.tensor.finite
    name = "value" if form in _COUNTS else "norm"
    old = None if before is None else number_of(before, name)
    new = number_of(after, name)
    if old is None or new is None or (name == "norm" and not old > _SMALLEST):
        return None
    with np.errstate(invalid="ignore", over="ignore"):
        return bool(_kept(np.array([old]), np.array([new]), claim, 1.0)[0])


def _kept(old: Floats, new: Floats, claim: Hypothesis, margin: float) -> Bools:
    form, bound = claim.text("form"), claim["bound"]
    found: Bools
    if form == "grows":
        found = new >= old
    elif form == "counts":
        found = new == old + 1
    else:
        assert isinstance(bound, float)
        found = (abs(new - old) if form == "change" else new) * margin <= bound * old
    return found


def _claim(name: tuple[str, str], form: str, bound: float | None = None) -> Hypothesis:
    params = {"variable": name[0], "attribute": name[1], "form": form}
    if bound is None:
        return hypothesis("numeric", **params)
    return hypothesis("numeric", **params, bound=bound)
