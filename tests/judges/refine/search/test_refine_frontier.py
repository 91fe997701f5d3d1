"""The operator that is named: the first without a relation that nothing confirms."""

from fractions import Fraction
from typing import Any

import pytest
import torch

from pytest_trainsafe.arithmetic.packing import packed
from pytest_trainsafe.judges.refine.graphs.fx_text import parse_fx
from pytest_trainsafe.judges.refine.problem.declared import stated_problem
from pytest_trainsafe.judges.refine.prove import Refutation, prove
from pytest_trainsafe.judges.refine.search.frontier import frontier

GRAPH = parse_fx("""
    def forward(self, x: "f32[4]"):
        log: "f32[4]" = torch.ops.aten.log.default(x)
        loss: "f32[]" = torch.ops.aten.sum.default(log)
        exp: "f32[4]" = torch.ops.aten.exp.default(log)
        zeros: "f32[4]" = torch.ops.aten.zeros_like.default(log)
        return (loss, exp, zeros)
""")


@pytest.mark.parametrize(
    ("related", "named"),
    [
        (["x"], "log"),
        (["x", "exp"], "loss"),
        (["x", "zeros"], "log"),
    ],
    ids=["nothing confirms it", "a gradient confirms it", "zeros confirm nothing"],
)
def test_a_tensor_without_a_counterpart_is_not_at_fault_if_one_made_of_it_is_right(related, named):
    values: dict[str, Any] = {"x": torch.rand(4), "log": torch.rand(4), "exp": torch.rand(4)}
    values |= {"loss": torch.tensor(1.0), "zeros": torch.zeros(4)}
    assert frontier(GRAPH, values, related, ["loss"]).name == named


@pytest.mark.parametrize(
    ("loss", "named"),
    [(Fraction(982451653, 961748941), "exp"), (Fraction(1, 2), "log")],
)
def test_a_loss_confirms_what_it_is_made_of_and_a_constant_does_not(loss, named):
    values: dict[str, Any] = {"x": torch.rand(4), "log": torch.rand(4), "exp": torch.rand(4)}
    values |= {"loss": packed(loss).reshape(()), "zeros": torch.zeros(4)}
    assert frontier(GRAPH, values, ["x", "loss"], ["exp"]).name == named


LOSS = parse_fx("""
    def forward(self, x: "f32[4]"):
        sin: "f32[4]" = torch.ops.aten.sin.default(x)
        cos: "f32[4]" = torch.ops.aten.cos.default(x)
        loss: "f32[4]" = torch.ops.aten.mul.Tensor(sin, cos)
        exp: "f32[4]" = torch.ops.aten.exp.default(x)
        gradient: "f32[4]" = torch.ops.aten.neg.default(exp)
        norm: "f32[4]" = torch.ops.aten.add.Tensor(cos, exp)
        return (loss, gradient, norm)
""")


@pytest.mark.parametrize(
    ("wrong", "named"), [(["loss", "gradient"], "sin"), (["gradient", "norm"], "exp")]
)
def test_what_comes_after_a_wrong_result_does_not_explain_it(wrong, named):
    """Nor does a norm that takes what is wrong decide, although one of its ends is the first."""
    values: dict[str, Any] = {node.name: torch.rand(4) for node in LOSS.nodes}
    assert frontier(LOSS, values, ["x"], wrong).name == named


NORM = parse_fx("""
    def forward(self, x: "f32[4, 2]", mean: "f32[4, 1]"):
        neg: "f32[4, 1]" = torch.ops.aten.neg.default(mean)
        back = torch.ops.aten.native_layer_norm_backward.default(x, x, [2], neg, neg)
        grad: "f32[4, 2]" = back[0]
        bias: "f32[2]" = back[2]
        return (grad, bias)
""")


def test_one_item_of_a_tuple_does_not_confirm_what_the_tuple_is_made_of():
    values: dict[str, Any] = {name: torch.rand(4) for name in ("x", "mean", "neg", "grad", "bias")}
    assert frontier(NORM, values, ["x", "mean", "bias"], ["grad"]).name == "neg"


ENTROPY = parse_fx("""
    def forward(self, x: "f32[4, 6]", target: "i64[4]", seed: "f32[]", count: "f32[]"):
        neg: "f32[4, 6]" = torch.ops.aten.neg.default(x)
        log: "f32[4, 6]" = torch.ops.aten._log_softmax.default(neg, 1, False)
        loss_items = torch.ops.aten.nll_loss_forward.default(log, target, None, 2, -100)
        loss: "f32[]" = loss_items[0]
        back: "f32[4, 6]" = torch.ops.aten.nll_loss_backward.default(seed, log, target, None, 2, -100, count)
        return (loss, back)
""")  # fmt: skip  # noqa: E501 - the text of a graph has one line for each operator


def test_a_gradient_that_takes_only_the_shape_of_a_tensor_does_not_confirm_it():
    values: dict[str, Any] = {"target": torch.tensor([1, 0, 2, 5]), "count": torch.tensor(4.0)}
    values |= {name: torch.rand(4, 6) for name in ("x", "neg", "log", "back")}
    values |= {"seed": torch.tensor(1.0), "loss": torch.tensor(0.7)}
    related = ["x", "target", "seed", "count", "back"]
    assert frontier(ENTROPY, values, related, ["loss"]).name == "neg"


LINEAR = """
    def forward(self, x: "f32[4, 6]", w: "f32[6, 6]"):
        mm: "f32[4, 6]" = torch.ops.aten.mm.default(x, w)
        {reduce}neg: "f32[4, 6]" = torch.ops.aten.neg.default({total})
        relu: "f32[4, 6]" = torch.ops.aten.relu.default(neg)
        return (relu,)
"""
REDUCE = """all: "f32[4, 6]" = torch.ops._c10d_functional.all_reduce.default(mm, '{kind}', '0')
        """


@pytest.mark.parametrize(("kind", "named"), [("sum", ""), ("avg", "neg")])
def test_an_average_is_named_where_it_is_taken_and_not_one_operator_later(kind, named):
    """The negatives of both averages are equal, and their sum is right: no clean relation."""
    rank = LINEAR.format(reduce=REDUCE.format(kind=kind), total="all")
    rank = rank.replace('x: "f32[4, 6]", w: "f32[6, 6]"', 'x: "f32[4, 3]", w: "f32[3, 6]"')
    given = stated_problem(
        parse_fx(LINEAR.format(reduce="", total="mm")),
        [parse_fx(rank)] * 2,
        {"inputs": {"x": "concat 1", "w": "concat 0"}},
    )
    found = prove(given)
    assert (found.node.name if isinstance(found, Refutation) else "") == named


SQUARED = """
    def forward(self, x: "f32[4]", y: "f32[4]"):
        sub: "f32[4]" = torch.ops.aten.sub.Tensor({difference})
        mul: "f32[4]" = torch.ops.aten.mul.Tensor(sub, sub)
        exp: "f32[4]" = torch.ops.aten.exp.default(sub)
        return (mul, exp)
"""


def test_a_square_does_not_confirm_a_tensor_of_which_the_ranks_have_the_negative():
    given = stated_problem(
        parse_fx(SQUARED.format(difference="x, y")),
        [parse_fx(SQUARED.format(difference="y, x"))] * 2,
        {"inputs": {"x, y": "replica"}, "mesh": {"tp": 2}},
    )
    found = prove(given)
    assert isinstance(found, Refutation)
    assert found.wrong == ("exp",)
    assert found.node.name == "sub"


MOMENT = """
    def forward(self, x: "f32[4]", y: "f32[2]"):
        slice_1: "f32[2]" = torch.ops.aten.slice.Tensor(x, 0, 0, 2)
        slice_2: "f32[2]" = torch.ops.aten.slice.Tensor(x, 0, 2, 4)
        neg: "f32[2]" = torch.ops.aten.{part}.default(slice_2)
        cat: "f32[4]" = torch.ops.aten.cat.default([slice_1, neg])
        square: "f32[4]" = torch.ops.aten.{square}
        exp: "f32[4]" = torch.ops.aten.exp.default(cat)
        return (square, exp)
"""


@pytest.mark.parametrize(
    "square",
    [
        "mul.Tensor(cat, cat)",
        "addcmul.default(x, cat, cat, value = 0.5)",
        "pow.Tensor_Scalar(cat, 2)",
        "abs.default(cat)",
    ],
)
def test_a_square_does_not_confirm_a_tensor_of_which_a_part_has_another_sign(square):
    """The second moment of a fused weight is right where the gradient of its keys is negative."""
    given = stated_problem(
        parse_fx(MOMENT.format(part="neg", square=square)),
        [parse_fx(MOMENT.format(part="clone", square=square))] * 2,
        {"inputs": {"x, y": "replica"}, "mesh": {"tp": 2}},
    )
    found = prove(given)
    assert isinstance(found, Refutation)
    assert (found.wrong, found.node.name) == (("exp",), "neg")


WRITTEN = """
    def forward(self, x: "f32[4, 2]", y: "f32[4]"):
        clone: "f32[4, 2]" = torch.ops.aten.clone.default(x)
        select: "f32[4]" = torch.ops.aten.select.int(clone, 1, 0)
        other: "f32[4]" = torch.ops.aten.select.int(clone, 1, 1)
        mul_: "f32[4]" = torch.ops.aten.mul_.Tensor(select, y)
        sub_: "f32[4]" = torch.ops.aten.{write}_.Tensor(other, y)
        {last}: "f32[4]" = torch.ops.aten.exp.default({taken})
        return ({last},)
"""


@pytest.mark.parametrize("taken", ["clone", "other"])
def test_what_is_written_through_a_view_is_named_and_not_who_reads_it(taken):
    texts = [WRITTEN.format(write=each, last="exp", taken=taken) for each in ("sub", "add")]
    if taken == "clone":
        texts = [text.replace('exp: "f32[4]"', 'exp: "f32[4, 2]"') for text in texts]
    sequential, rank = map(parse_fx, texts)
    given = stated_problem(
        sequential, [rank] * 2, {"inputs": {"x, y": "replica"}, "mesh": {"tp": 2}}
    )
    found = prove(given)
    assert isinstance(found, Refutation)
    assert found.node.name == "sub_"
