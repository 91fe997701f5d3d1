"""Integer inputs are drawn below what a graph selects by them."""

from __future__ import annotations

import pytest

from pytest_trainsafe.judges.refine.evaluate.draw import bounds, value_of
from pytest_trainsafe.judges.refine.graphs.fx_text import parse_fx

ROTATED = """
def forward(self, positions: "i64[12]", query: "f32[12, 4]", table: "f32[7, 4]"):
    out = torch.ops.higher_order.auto_functionalized(torch.ops._C.rotary_embedding.default, positions = positions, query = query, key = query, head_size = 4, cos_sin_cache = table, is_neox = True)
    getitem: "f32[12, 4]" = out[1]
    return (getitem,)
"""  # noqa: E501 - the text of a graph has one line for each operator

EMBEDDED = """
def forward(self, positions: "i64[12]", table: "f32[7, 4]"):
    copied: "i64[12]" = torch.ops.aten.clone.default(positions)
    rows: "f32[12, 4]" = torch.ops.aten.embedding.default(table, copied)
    return (rows,)
"""

COUNTED = """
def forward(self, positions: "i64[12]", values: "f32[12]"):
    mul: "f32[12]" = torch.ops.aten.mul.Tensor(values, positions)
    return (mul,)
"""


@pytest.mark.parametrize("text", [ROTATED, EMBEDDED], ids=["a kernel", "embedding"])
def test_integers_that_select_rows_are_below_the_number_of_rows(text: str) -> None:
    graph = parse_fx(text, "graph")
    assert bounds(graph) == {"positions": 7}
    (positions, *_) = graph.inputs
    drawn = {int(each) for seed in range(20) for each in value_of(positions, bounds(graph), seed)}
    assert drawn == {*range(7)}


def test_integers_that_only_multiply_are_not_their_own_squares() -> None:
    graph = parse_fx(COUNTED, "graph")
    (positions, _) = graph.inputs
    drawn = {int(each) for seed in range(20) for each in value_of(positions, bounds(graph), seed)}
    assert {0, 1} < drawn
