"""Of several doubts, the one that causes the others leads; independent ones stay apart."""

from __future__ import annotations

import pytest

from pytest_trainsafe.core.finding import Finding
from pytest_trainsafe.judges.compare.checks import CHECKS
from pytest_trainsafe.judges.compare.guards.causes import FOLLOWS, by_cause, leading


def doubts(*checks: str) -> list[Finding]:
    return [
        Finding(verdict="inconclusive", judge="vacuity", check=check, message=f"on {check}")
        for check in checks
    ]


def names(found: tuple[Finding, ...]) -> list[str]:
    return [finding.check for finding in found]


@pytest.mark.parametrize(
    ("given", "cause", "follow", "apart"),
    [
        (["moved", "gradients", "zeros"], ["zeros"], ["moved", "gradients"], []),
        (["coverage:update", "skipped-step"], ["skipped-step"], ["coverage:update"], []),
        (["sensitive:loss", "reference-finite"], ["reference-finite"], ["sensitive:loss"], []),
        (["moved", "dp-inputs", "in-effect"], ["dp-inputs"], [], ["moved", "in-effect"]),
        (["moved"], ["moved"], [], []),
    ],
)
def test_the_check_from_which_others_follow_leads(
    given: list[str], cause: list[str], follow: list[str], apart: list[str]
) -> None:
    found = by_cause(doubts(*given))
    assert (names(found.cause), names(found.follow), names(found.apart)) == (cause, follow, apart)
    lead = leading(doubts(*given))
    assert lead is not None
    assert lead.check == cause[0]


def test_one_check_on_many_kinds_of_tensors_is_one_cause() -> None:
    kinds = [f"sensitive:{kind}" for kind in ("activation", "loss", "param_grad", "update")]
    found = by_cause(doubts(*kinds))
    assert names(found.cause) == kinds
    assert (found.follow, found.apart) == ((), ())


def test_independent_doubts_keep_their_own_messages() -> None:
    found = by_cause(doubts("dropout", "tp-inputs"))
    assert (names(found.cause), names(found.apart)) == (["tp-inputs"], ["dropout"])


def test_without_a_doubt_nothing_leads() -> None:
    assert leading([]) is None


def test_every_check_of_the_comparison_has_a_place() -> None:
    own = {check.removesuffix(":KIND") for check in CHECKS}
    assert set(FOLLOWS) == own
    assert {check for checks in FOLLOWS.values() for check in checks} <= own
