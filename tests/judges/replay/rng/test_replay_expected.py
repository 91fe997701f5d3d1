"""expect_rng adds rules, replaces default rules, and refuses invalid arguments."""

from __future__ import annotations

import pytest

from pytest_trainsafe import TrainsafeFailure, assert_rng, assert_trainsafe, expect_rng
from pytest_trainsafe.judges.replay.rng.ledger_rules import judge_rng
from tests.support.replay import rng_programs

SAME_SEED = "one seed for all data-parallel ranks"


def test_equal_draws_over_an_axis_pass_only_in_modules_where_they_are_expected(recorded):
    faulty = recorded("train", SAME_SEED, dp=2)

    assert_rng(faulty, expect=[expect_rng("drop", same="dp")])
    with pytest.raises(TrainsafeFailure, match="rng:dp_same_dropout"):
        assert_rng(faulty, expect=[expect_rng("inner_drop", different="dp")])


@pytest.mark.trainsafe(
    rng_programs.train, dp=2, dtype=["float64"], expect=[expect_rng("drop", same="dp")]
)
def test_assert_rng_and_assert_trainsafe_apply_the_expectations_of_the_marker(
    candidate_trace, reference_trace
):
    for check in (
        lambda: assert_rng(candidate_trace),
        lambda: assert_trainsafe(candidate_trace, reference_trace),
    ):
        with pytest.raises(TrainsafeFailure) as failure:
            check()
        assert "rng:expected" in [finding.check for finding in failure.value.findings]


@pytest.mark.parametrize(
    ("expectation", "words"),
    [
        (expect_rng("drop", same=["dp"]), "draw different numbers, first at draw 0 (counted"),
        (expect_rng("*_drop", same="dp"), "draw different numbers, first at draw 0 (counted"),
    ],
)
def test_a_broken_expectation_of_equal_draws_names_the_first_differing_draw(
    recorded, expectation, words
):
    [finding] = judge_rng(recorded("train", dp=2), None, [expectation]).findings

    assert finding.check == "rng:expected"
    assert words in finding.message


def test_a_broken_expectation_of_different_draws_names_both_ranks(recorded):
    rule = expect_rng("drop", different="tp")
    [finding] = judge_rng(recorded("train", tp=2), None, [rule]).findings

    assert "ranks 0, 1 draw the same numbers, first at draw 0 (counted from 0)" in finding.message


def test_an_ignored_rule_is_skipped_only_for_draws_that_match_the_pattern(recorded):
    faulty = recorded("train", "evaluates from the training's stream")
    here = expect_rng("rng_programs.py:*", ignore="rng:evaluation_shift", reason="a short test")
    elsewhere = expect_rng("other.py:*", ignore="rng:evaluation_shift", reason="a short test")

    assert judge_rng(faulty, None, [here]).findings == ()
    judgement = judge_rng(faulty, None, [elsewhere])
    assert [finding.check for finding in judgement.findings] == ["rng:evaluation_shift"]
    assert judgement.not_compared == ("no draw matches expect_rng('other.py:*')",)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"same": "pp"}, "takes the axes dp, tp, cp, not 'pp'"),
        ({"same": "dp", "different": "dp"}, "has 'dp' in same= and in different="),
        ({}, r"has no expectation; pass same=, different= or ignore="),
        ({"ignore": "rng:workers"}, "lacks a reason"),
        ({"ignore": "rng:worker", "reason": "x"}, "takes some of rng:dp_same_dropout, .*worker'"),
    ],
)
def test_expect_rng_refuses_invalid_arguments(given, message):
    with pytest.raises(ValueError, match=message):
        expect_rng("drop", **given)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"where": 5, "same": "dp"}, "given 5 as where; where must be text: a pattern of modules"),
        ({"where": None, "same": "dp"}, "given None as where"),
        ({"where": ["a"], "same": "dp"}, r"given \['a'\] as where"),
        ({"same": 5}, "given 5 as same; same must be one of dp, tp, cp, or a list of some of them"),
        ({"same": None}, "given None as same"),
        ({"different": True}, "given True as different; different must be one of dp, tp, cp"),
        ({"same": ["tp", 5]}, r"given \['tp', 5\] as same"),
        ({"ignore": 5}, "given 5 as ignore; ignore must be one of rng:dp_same_dropout, "),
        ({"same": "tp", "reason": None}, "given None as reason; reason must be text: a sentence"),
        ({"same": "tp", "reason": 5}, "given 5 as reason"),
    ],
)
def test_expect_rng_names_arguments_of_wrong_types_and_what_is_allowed(given, message):
    with pytest.raises(TypeError, match=f"expect_rng was {message}"):
        expect_rng(**given)


def test_draws_that_the_ledger_does_not_show_are_ignored_everywhere_or_nowhere():
    expect_rng("*", ignore="rng:unseen", reason="a library draws them")
    with pytest.raises(ValueError, match=r"rng:unseen at some places only, .* where=\"\*\""):
        expect_rng("train.py:*", ignore="rng:unseen", reason="a library draws them")


def test_assert_rng_refuses_an_expectation_that_is_a_string(recorded):
    with pytest.raises(TypeError, match="must be a list of results of expect_rng"):
        assert_rng(recorded("train"), expect=["drop"])  # type: ignore[list-item]
