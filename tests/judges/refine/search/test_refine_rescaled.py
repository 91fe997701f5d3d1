"""A multiple of the ranks' tensor is named where the sequential graph multiplies it last."""

from fractions import Fraction

import pytest

from pytest_trainsafe.judges.refine.graphs.fx_text import parse_fx
from pytest_trainsafe.judges.refine.problem.declared import stated_problem
from pytest_trainsafe.judges.refine.prove import Proof, Refutation, prove

SUM = """
    def forward(self, x: "f32[8]"):
        exp: "f32[8]" = torch.ops.aten.exp.default(x)
        {first}
        div: "f32[]" = torch.ops.aten.div.Tensor({divided})
        detach: "f32[]" = torch.ops.aten.detach.default(div)
        sin: "f32[]" = torch.ops.aten.sin.default(detach)
        return (sin,)
"""
SEQUENTIAL = SUM.format(
    first='sum_1: "f32[]" = torch.ops.aten.sum.default(exp)', divided="sum_1, 8"
)
MEANS = """
    def forward(self, x_1: "f32[4]", x_2: "f32[4]"):
        exp: "f32[4]" = torch.ops.aten.exp.default(x_1)
        mean: "f32[]" = torch.ops.aten.mean.default(exp)
        exp_1: "f32[4]" = torch.ops.aten.exp.default(x_2)
        mean_1: "f32[]" = torch.ops.aten.mean.default(exp_1)
        add: "f32[]" = torch.ops.aten.add.Tensor(mean, mean_1)
        div: "f32[]" = torch.ops.aten.div.Tensor(add, {divisor})
        sin: "f32[]" = torch.ops.aten.sin.default(div)
        return (sin,)
"""
DOUBLED = SUM.format(
    first="""sum_1: "f32[]" = torch.ops.aten.sum.default(exp)
        mul: "f32[]" = torch.ops.aten.mul.Tensor(sum_1, {factor})""",
    divided="mul, 8",
)


def judged(sequential: str, rank: str, relation: str) -> Proof | Refutation:
    return prove(
        stated_problem(
            parse_fx(sequential, "sequential"),
            [parse_fx(rank, "rank")],
            {"inputs": {"x": relation}, "mesh": {"tp": 1}},
        )
    )


def test_a_sum_of_means_is_named_at_the_division_with_the_factor_that_is_missing():
    relation = "concat 0 of x_1, x_2"
    assert isinstance(judged(SEQUENTIAL, MEANS.format(divisor=2), relation), Proof)
    found = judged(SEQUENTIAL, MEANS.format(divisor=4), relation)
    assert isinstance(found, Refutation)
    assert found.node.name == "div"
    assert found.nearest is not None
    assert found.nearest.factor == Fraction(2)


@pytest.mark.parametrize("factor", [1, 4])
def test_another_factor_of_the_same_operator_is_named_there(factor):
    found = judged(DOUBLED.format(factor=2), DOUBLED.format(factor=factor), "replica")
    assert isinstance(found, Refutation)
    assert found.node.name == "mul"
    assert found.nearest is not None
    assert found.nearest.factor == Fraction(2, factor)
