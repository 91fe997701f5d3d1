"""A setting of the optimizer is the cause of replicas, states and decays that it makes wrong."""

from __future__ import annotations

import pytest

from pytest_trainsafe.core.finding import Finding, Pattern
from pytest_trainsafe.core.tensor_id import TensorId
from pytest_trainsafe.judges.compare.guards.later_steps import Apart
from pytest_trainsafe.judges.compare.ladder.known_setting import of_settings

HELD = {"up.weight", "down.weight"}


def wrong(kind: str, name: str = "weight", check: str = "norm", pattern: str = "") -> Finding:
    where = TensorId(1, None, kind, "up", name)  # type: ignore[arg-type]
    made = Pattern(pattern, "how it differs", cause="a guess") if pattern else None
    return Finding(
        verdict="fail", judge="compare", check=check, message="", where=where, pattern=made
    )


def cause(finding: Finding, apart: Apart, *others: Finding) -> str:
    """The cause of the first finding beside others, if a setting differs."""
    pattern = of_settings([finding, *others], [apart], HELD, ends=False)[0].pattern
    return "" if pattern is None else pattern.cause


def test_replicas_that_a_setting_of_some_ranks_makes_differ_have_it_as_their_cause() -> None:
    apart = Apart("lr", "0.005 and 0.01", "0.01", ("up.weight",))
    found = cause(wrong("param", check="replicas"), apart)
    assert found == "the optimizer's setting lr is 0.005 and 0.01, in the reference 0.01"
    others = Apart("lr", "0.005 and 0.01", "0.01", ("down.weight",))
    assert cause(wrong("param", check="replicas"), others) == ""


@pytest.mark.parametrize(
    ("key", "also", "named"),
    [("betas", "update", True), ("lr", "update", False), ("betas", "main_grad", False)],
)
def test_a_wrong_state_has_the_setting_that_computes_it_unless_its_gradient_is_wrong(
    key: str, also: str, named: bool
) -> None:
    apart = Apart(key, "(0.9, 0.99)", "(0.9, 0.95)", ())
    found = cause(wrong("optimizer_state", "weight.exp_avg_sq"), apart, wrong(also))
    assert found.startswith(f"the optimizer's setting {key} is (0.9, 0.99)") == named


@pytest.mark.parametrize(
    ("key", "names", "named"),
    [
        ("weight_decay", ("down.weight", "up.weight"), True),  # the other one may be zero
        ("weight_decay", ("down.weight",), False),
        ("lr", ("down.weight", "up.weight"), False),
    ],
)
def test_a_decay_has_its_setting_although_it_differs_for_more_parameters(
    key: str, names: tuple[str, ...], named: bool
) -> None:
    found = cause(wrong("update", pattern="decay"), Apart(key, "0.05", "0.1", names))
    setting = f"the optimizer's setting {key} is 0.05, in the reference 0.1"
    assert found == (setting if named else "a guess")
