"""The text of an HLO module is a graph of ATen operators, proved like any other."""

import pytest

from pytest_trainsafe import TrainsafeFailure, assert_refines
from pytest_trainsafe.judges.refine.errors import GraphError, InputRelationError
from pytest_trainsafe.judges.refine.graphs.hlo_text import parse_hlo

MODULE = """HloModule mlp, entry_computation_layout={{(f32[4,6]{{1,0}})->f32[4,6]{{1,0}}}}

%adder (a.1: f32[], b.2: f32[]) -> f32[] {{
  %a.1 = f32[] parameter(0)
  %b.2 = f32[] parameter(1)
  ROOT %add.3 = f32[] add(%a.1, %b.2)
}}

ENTRY %main (x.1: f32[4,6], up.2: f32[6,{w}], down.3: f32[{w},6]) -> f32[4] {{
  %x.1 = f32[4,6]{{1,0}} parameter(0)
  %up.2 = f32[6,{w}]{{1,0}} parameter(1)
  %down.3 = f32[{w},6]{{1,0}} parameter(2)
  %constant.4 = f32[6]{{0}} constant({{...}})
  %dot.5 = f32[4,{w}]{{1,0}} dot(%x.1, %up.2), {row}
  %tanh.6 = f32[4,{w}]{{1,0}} tanh(%dot.5)
  %dot.7 = f32[6,4]{{1,0}} dot(%down.3, %tanh.6), {column}
  %transpose.8 = f32[4,6]{{1,0}} transpose(%dot.7), dimensions={{1,0}}
  {reduce}
  %broadcast.10 = f32[4,6]{{1,0}} broadcast(%constant.4), dimensions={{1}}
  %add.11 = f32[4,6]{{1,0}} add(%{sum}, %broadcast.10)
  %slice.12 = f32[4,3]{{1,0}} slice(%add.11), slice={{[0:4], [3:6]}}
  %constant.13 = f32[] constant(0)
  ROOT %reduce.14 = f32[4]{{0}} reduce(%slice.12, %constant.13), dimensions={{1}}, to_apply=%adder
}}
"""
ROW = "lhs_contracting_dims={1}, rhs_contracting_dims={0}"
COLUMN = "lhs_contracting_dims={0}, rhs_contracting_dims={1}"
REDUCE = (
    "%all-reduce.9 = f32[4,6]{1,0} all-reduce(%transpose.8), replica_groups={{0,1}}, "
    "to_apply=%adder"
)


def module(width, reduce, total):
    return MODULE.format(w=width, reduce=reduce, sum=total, row=ROW, column=COLUMN)


SEQUENTIAL = module(8, "", "transpose.8")
RANK = module(4, REDUCE, "all-reduce.9")
RELATION = {
    "mesh": {"tp": 2},
    "inputs": {
        "x.1, constant.4": "replica",
        "up.2": "concat 1",
        "down.3": "concat 0",
    },
}


def test_the_comments_that_count_the_items_of_a_tuple_are_no_part_of_names():
    named = MODULE.replace("ROOT %reduce.14", "%reduce.14")
    items = "f32[4,6]{{1,0}}, /*index=5*/f32[4]{{0}}"
    root = f"  ROOT %tuple.15 = ({items}) tuple(%add.11, /*index=5*/%reduce.14)\n}}}}\n"
    text = named.rstrip().removesuffix("}}") + root
    graph = parse_hlo(text.format(w=8, reduce="", sum="transpose.8", row=ROW, column=COLUMN))
    assert graph.outputs == ("add.11", "reduce.14")


def test_one_program_for_all_ranks_is_proved():
    certificate = assert_refines(SEQUENTIAL, [RANK, RANK], RELATION)
    assert certificate.outputs == {"reduce.14": "replica of reduce.14"}
    assert certificate.relations["dot.5"][0] == "concat 1 over tp of dot.5"


def test_a_missing_all_reduce_is_refuted():
    wrong = module(4, "", "transpose.8")
    with pytest.raises(TrainsafeFailure, match="an all-reduce over tp is missing") as raised:
        assert_refines(SEQUENTIAL, [wrong, wrong], RELATION)
    (finding,) = raised.value.findings
    assert dict(finding.evidence)["tensor"] == "add.11"


def test_groups_that_do_not_fit_are_named():
    wrong = RANK.replace("{{0,1}}", "{{0},{2}}")
    with pytest.raises(InputRelationError, match="each of the 2 ranks once"):
        assert_refines(SEQUENTIAL, [wrong, wrong], RELATION)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("tanh(", "fft(", "the operator fft"),
        ("tanh(%dot.5)", "tanh(%dot.9)", "the operand dot.9"),
        ("constant(0)", "constant(1)", "a reduction"),
        ("constant(0)", "constant(__import__)", "the constant"),
        ("{[0:4], [3:6]}", "{[0:4]}", "a slice"),
        ("  ROOT %reduce.14", "  %reduce.14", "no ROOT"),
        ("  %x.1 =", "  import os =", "the line"),
        (
            "broadcast(%constant.4), dimensions={1}",
            "broadcast(%constant.4), dimensions={7}",
            "do not fit",
        ),
    ],
)
def test_what_is_not_known_is_refused_with_its_line(old, new, said):
    with pytest.raises(GraphError, match=said):
        parse_hlo(SEQUENTIAL.replace(old, new), "module.txt")
