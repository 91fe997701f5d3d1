"""Integers that a graph compares an input with, or ignores, are among those that are drawn."""

import pytest
import torch

from pytest_trainsafe.judges.refine.evaluate.draw import value_of
from pytest_trainsafe.judges.refine.evaluate.marks import marks
from pytest_trainsafe.judges.refine.graphs.fx_text import parse_fx
from pytest_trainsafe.judges.refine.problem.declared import stated_problem
from pytest_trainsafe.judges.refine.prove import Proof, Refutation, prove

MASKED = """
    def forward(self, words: "i64[6]", x: "f32[6]"):
        {line}
        mul: "f32[6]" = torch.ops.aten.mul.Tensor(x, kept)
        return (mul,)
"""
KEPT = 'kept: "b8[6]" = torch.ops.aten.ne.Scalar(words, {word})'
ALL = 'kept: "b8[6]" = torch.ops.aten.ge.Scalar(words, 0)'
ADDED = """add: "i64[6]" = torch.ops.aten.add.Tensor(words, 2)
        kept: "b8[6]" = torch.ops.aten.eq.Scalar(add, 7)"""


def given(sequential, rank, below=500):
    lines = (MASKED.format(line=line) for line in (sequential, rank))
    whole, part = map(parse_fx, lines)
    relation = {"inputs": {"words, x": "replica"}, "below": {"words": below}, "mesh": {"tp": 2}}
    return stated_problem(whole, [part] * 2, relation)


@pytest.mark.parametrize("word", [0, 70, 499])
def test_a_rank_that_does_not_mask_a_rare_word_is_refuted(word):
    found = prove(given(KEPT.format(word=word), ALL))
    assert isinstance(found, Refutation)
    assert found.node.name == "kept"


def test_a_rank_that_masks_the_rare_word_in_another_way_is_proved():
    moved = 'sub: "i64[6]" = torch.ops.aten.sub.Tensor(words, 50)\n        '
    assert isinstance(prove(given(KEPT.format(word=70), moved + KEPT.format(word=20)
                                  .replace("words", "sub"))), Proof)  # fmt: skip


@pytest.mark.parametrize(
    ("line", "found"),
    [
        (KEPT.format(word=7), (7,)),
        ('kept: "b8[6]" = torch.ops.aten.lt.Scalar(words, 7)', (6, 7)),
        ('kept: "b8[6]" = torch.ops.aten.gt.Scalar(words, 7)', (7, 8)),
        (ADDED, (5,)),
    ],
)
def test_the_numbers_of_both_outcomes_of_a_comparison_are_marked(line, found):
    assert marks(given(line, line)) == {"words": found}


def test_marks_are_drawn_but_never_more_than_half_of_the_integers():
    graph = given(ALL, ALL).sequential
    node = graph.by_name["words"]
    few = value_of(node, {"words": 500}, 0, (7, 300, -100, 500))
    assert {7, 300} <= {*few.tolist()}
    assert not {-100, 500} & {*few.tolist()}
    many = value_of(node, {"words": 500}, 0, range(500, 0, -1))
    assert int((many != value_of(node, {"words": 500}, 0)).sum()) <= 3
    assert torch.equal(many, value_of(node, {"words": 500}, 0, range(500, 0, -1)))
