"""Orders the doubts of an inconclusive verdict: the one that causes the others comes first.

One circumstance makes several guards doubtful: with weights of zero there is no gradient and
nothing moves.  Called by the report and by the summary.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from pytest_trainsafe.core.finding import Finding

#: For each check, the checks that are doubtful too if it is.  The order is that of the report: of
#: two doubts that explain each other, or of two independent ones, the earlier leads.
FOLLOWS: Mapping[str, tuple[str, ...]] = {
    "deterministic": ("sensitive", "diverged", "coverage", "moved", "narrowed"),
    "compared": ("gradients-compared", "coverage", "moved", "in-effect", "dp-inputs"),
    "measured": ("sensitive", "diverged", "reference"),
    "reference-finite": ("reference", "sensitive", "coverage", "gradients", "moved", "diverged"),
    "reference": ("coverage", "moved"),
    "zeros": ("gradients", "moved", "sensitive", "coverage"),
    "gradients": ("moved", "sensitive", "coverage"),
    "skipped-step": ("moved", "coverage"),
    "tp-inputs": ("in-effect",),
    "dp-inputs": (),
    "in-effect": (),
    "dropout": (),
    "sensitive": ("diverged", "narrowed", "coverage"),
    "diverged": ("narrowed",),
    "coverage": ("gradients-compared", "moved"),
    "gradients-compared": ("moved",),
    "moved": (),
    "narrowed": (),
    "sketched": (),
}


@dataclass(frozen=True, slots=True)
class Doubts:
    """The doubts of a verdict, each list in the order in which they were found.

    `cause` has the doubts of one check, also those on several kinds of tensors; it is never empty.
    `follow` has those that may follow from it, and `apart` the others.
    """

    cause: tuple[Finding, ...]
    follow: tuple[Finding, ...]
    apart: tuple[Finding, ...]


def check_of(finding: Finding) -> str:
    """The check of a finding without the kind of tensor: `sensitive` for `sensitive:loss`."""
    return finding.check.partition(":")[0]


def by_cause(doubts: Sequence[Finding]) -> Doubts:
    """The doubts, of which there must be one, divided into a cause, what follows and the rest."""
    checks = dict.fromkeys(map(check_of, doubts))
    roots = [check for check in checks if not any(check in _after(o) for o in checks)]
    cause = min(roots or checks, key=_place)
    after = _after(cause)
    return Doubts(
        tuple(f for f in doubts if check_of(f) == cause),
        tuple(f for f in doubts if check_of(f) in after),
        tuple(f for f in doubts if check_of(f) not in {cause, *after}),
    )


def leading(doubts: Iterable[Finding]) -> Finding | None:
    """The doubt that leads the report; None if there is none."""
    found = list(doubts)
    return by_cause(found).cause[0] if found else None


def _after(check: str) -> frozenset[str]:
    """The checks that follow from a check, directly or through another one."""
    return frozenset(_reached(check)) - {check}


def _reached(check: str) -> Iterator[str]:
    for other in FOLLOWS.get(check, ()):
        yield other
        yield from _reached(other)


def _place(check: str) -> int:
    order = list(FOLLOWS)
    return order.index(check) if check in FOLLOWS else len(order)
