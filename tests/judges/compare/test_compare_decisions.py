"""A choice that differs from the reference's passes only if rounding can explain it."""

from __future__ import annotations

import torch

from pytest_trainsafe.core.rungs.table import rung_named
from pytest_trainsafe.judges.compare.kinds.decisions import judge_decision

#: Two rows of four options: the first is a close call between options 1 and 2.
SCORES = torch.tensor([[0.5, 0.2, 0.199, 0.101], [0.6, 0.3, 0.06, 0.04]], dtype=torch.float64)
EXPECTED = torch.tensor([[0, 1], [0, 1]])
#: Rounding moves scores by 0.0004, which explains margins up to 0.0024 in bfloat16.
OTHERS = [SCORES + torch.tensor([0.0004, -0.0004, 0.0, 0.0])]


def test_equal_choices_pass_in_any_order() -> None:
    found = judge_decision(EXPECTED.flip(-1), EXPECTED, SCORES, OTHERS, "bfloat16")

    assert (found.total, found.differ, found.message) == (2, 0, "")
    assert not found.blind


def test_a_different_choice_within_rounding_passes() -> None:
    found = judge_decision(torch.tensor([[0, 2], [0, 1]]), EXPECTED, SCORES, OTHERS, "bfloat16")

    assert (found.differ, found.wrong, found.message) == (1, 0, "")
    assert abs(found.margin - 0.001) < 1e-9
    assert abs(found.allowed - 2 * rung_named("bfloat16").safety * 0.0004) < 1e-9


def test_a_different_choice_beyond_rounding_fails() -> None:
    found = judge_decision(torch.tensor([[0, 2], [0, 2]]), EXPECTED, SCORES, OTHERS, "bfloat16")

    assert (found.differ, found.wrong) == (2, 1)
    assert found.message.startswith("2 of 2 choices differ from the reference's, 1 of them")
    assert "differ by up to 0.24" in found.message


def test_a_duplicate_choice_is_wrong() -> None:
    found = judge_decision(torch.tensor([[0, 1], [0, 0]]), EXPECTED, SCORES, OTHERS, "bfloat16")

    assert found.wrong == 1


def test_without_measured_rounding_every_different_choice_is_wrong() -> None:
    found = judge_decision(torch.tensor([[0, 2], [0, 1]]), EXPECTED, SCORES, [], "bfloat16")

    assert found.wrong == 1


def test_invalid_option_numbers_and_shapes_are_reported() -> None:
    beyond = judge_decision(EXPECTED + 3, EXPECTED, SCORES, OTHERS, "bfloat16")
    fewer = judge_decision(EXPECTED[:, :1], EXPECTED, SCORES, OTHERS, "bfloat16")

    assert "numbered from 3 to 4, but the valid numbers are 0 to 3" in beyond.message
    assert "has shape [2, 1], but its reference has shape [2, 2]" in fewer.message


def test_rounding_that_explains_every_choice_makes_the_check_blind() -> None:
    wide = [SCORES + torch.tensor([0.2, 0.0, 0.0, 0.0])]

    assert judge_decision(EXPECTED, EXPECTED, SCORES, wide, "bfloat16").blind
    everything = torch.arange(4).expand(2, 4)
    assert not judge_decision(everything, everything, SCORES, wide, "bfloat16").blind
