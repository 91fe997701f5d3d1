"""Shapes shrink so that products, sums and ratios stay, and verdicts do too."""

from typing import Any

import pytest
import torch
from torch.nn import functional

from pytest_trainsafe.judges.refine.graphs.fx_text import parse_fx
from pytest_trainsafe.judges.refine.graphs.modules import capture
from pytest_trainsafe.judges.refine.problem.declared import stated_problem
from pytest_trainsafe.judges.refine.prove import Proof, Refutation, prove
from pytest_trainsafe.judges.refine.sizes.shrink import affordable, shrunk
from pytest_trainsafe.reference_models import llama
from pytest_trainsafe.reference_models.captured import captured
from tests.support.refine.graphs import RANK, SEQUENTIAL

HEADS = """
    def forward(self, x: "f32[64, 2, {width}]", table: "f32[{rows}, 32]", ids: "i64[64]"):
        view: "f32[64, {both}, 32]" = torch.ops.aten.view.default(x, [64, {both}, 32])
        split = torch.ops.aten.split_with_sizes.default(view, [24, 8], 2)
        left: "f32[64, {both}, 24]" = split[0]
        right: "f32[64, {both}, 8]" = split[1]
        cat: "f32[64, {both}, 32]" = torch.ops.aten.cat.default([right, left], 2)
        flat: "f32[{all}, 32]" = torch.ops.aten.view.default(cat, [-1, 32])
        sub: "i64[64]" = torch.ops.aten.sub.Tensor(ids, {offset})
        mean: "f32[{all}]" = torch.ops.aten.mean.dim(flat, [1])
        back: "f32[64, 2, {heads}]" = torch.ops.aten.view.default(mean, [64, 2, {heads}])
        return (back,)
"""


def heads(share, offset):
    return parse_fx(HEADS.format(
        width=32 * 10 // share, rows=4096 // share, both=2 * 10 // share, heads=10 // share,
        all=64 * 2 * 10 // share, offset=offset,
    ))  # fmt: skip


def shape(graph, name):
    return list(graph.by_name[name].shape or ())


def argument(graph, name, place):
    found: Any = graph.by_name[name].args[place]
    return found


def problem():
    relation = {"inputs": {"x": "concat 2", "table": "concat 0", "ids": "replica"}}
    return stated_problem(heads(1, 0), [heads(2, 0), heads(2, 2048)], relation)


def test_products_sums_ratios_and_differences_stay():
    given = problem()
    small_problem, small = shrunk(given)
    sequential, (first, second) = small_problem.sequential, small_problem.ranks
    assert shape(sequential, "table")[0] == 2 * shape(first, "table")[0] < 100
    assert argument(second, "sub", 1) == shape(second, "table")[0]
    left, right = argument(sequential, "split", 1)
    assert [left, right] == small[0]["split"]
    assert left + right == shape(sequential, "view")[2]
    rows, both, _ = shape(sequential, "view")
    assert shape(sequential, "flat")[0] == rows * both
    for graph, shrunken in zip(
        [given.sequential, *given.ranks],
        [small_problem.sequential, *small_problem.ranks],
        strict=True,
    ):
        for node, other in zip(graph.nodes, shrunken.nodes, strict=True):
            for a, b in zip(node.shape or (), other.shape or (), strict=True):
                assert (a == 1) == (b == 1)
            pairs = list(zip(node.shape or (), other.shape or (), strict=True))
            assert all((a == c) == (b == d) for a, b in pairs for c, d in pairs)


def test_shrunk_graphs_compute_and_are_proved():
    proof = prove(shrunk(problem())[0])
    assert isinstance(proof, Proof)
    assert str(proof.outputs["back"]) == "concat 2 over ranks of back"


def scaled(text, factor):
    """The text of the MLP with all its sizes multiplied."""
    for size in (24, 8, 6, 4):
        text = text.replace(f"[{size}", f"[{size * factor}").replace(
            f", {size}]", f", {size * factor}]"
        )
    return text.replace(f"[{24 * factor}", f"[{24 * factor**2}")


@pytest.mark.parametrize(
    ("old", "new", "verdict"),
    [
        ("", "", Proof),
        ("add.Tensor(x, wait)", "add.Tensor(x, mm_1)", Refutation),
        ("'sum'", "'avg'", Refutation),
    ],
)
def test_verdicts_are_the_same_in_both_sizes(old, new, verdict):
    relation = {
        "inputs": {"x, ids": "replica", "up": "concat 1", "down": "concat 0"},
        "outputs": {"index": "replica"},
    }
    found = []
    for factor in (1, 1024):
        rank = scaled(RANK.replace(old, new) if old else RANK, factor)
        given = stated_problem(parse_fx(scaled(SEQUENTIAL, factor)), [parse_fx(rank)] * 2, relation)
        assert affordable(given) == (factor == 1)
        found.append(prove(given))
    assert [type(each) for each in found] == [verdict, verdict]
    nodes = [each.node.name for each in found if isinstance(each, Refutation)]
    assert len(set(nodes)) <= 1


SLICED = """
    def forward(self, table: "f32[4096, 2048]", x: "f32[1024, 2048]"):
        slice_1: "f32[1024, 2048]" = torch.ops.aten.slice.Tensor(table, 0, {start}, {end})
        add: "f32[1024, 2048]" = torch.ops.aten.add.Tensor(x, slice_1)
        return (add,)
"""

WHOLE = """
    def forward(self, table: "f32[4096, 2048]", x: "f32[4096, 2048]"):
        add: "f32[4096, 2048]" = torch.ops.aten.add.Tensor(x, table)
        return (add,)
"""


def sliced(starts):
    relation = {"inputs": {"table": "replica", "x": "concat 0"}}
    ranks = [parse_fx(SLICED.format(start=start, end=start + 1024)) for start in starts]
    return stated_problem(parse_fx(WHOLE), ranks, relation)


def test_a_position_that_equals_another_dimension_is_not_that_dimension():
    """The third rank's rows start at 2048, which is also the width."""
    given = sliced([0, 1024, 2048, 3072])
    small, _ = shrunk(given)
    rows, width = shape(small.sequential, "x")
    assert argument(small.ranks[2], "slice_1", 2) == rows // 2
    assert rows % 4 == 0
    assert rows != width
    assert isinstance(prove(given), Proof)


def test_a_wrong_position_stays_wrong_in_small_sizes():
    assert isinstance(prove(sliced([0, 1024, 1024, 3072])), Refutation)


SPLIT = """
    def forward(self, x: "f32[{cut}, 2048]", y: "f32[2048, 4096]"):
        view: "f32[{heads}, 64, 2048]" = torch.ops.aten.view.default(x, [{heads}, 64, 2048])
        transpose: "f32[{heads}, 2048, 64]" = torch.ops.aten.transpose.int(view, 1, 2)
        narrow: "f32[{heads}, 2048, 32]" = torch.ops.aten.slice.Tensor(transpose, 2, 32, 64)
        flat: "f32[{rows}, 32]" = torch.ops.aten.reshape.default(narrow, [{rows}, 32])
        mm: "f32[{cut}, 4096]" = torch.ops.aten.mm.default(x, y)
        return (flat, mm)
"""


def test_dimensions_that_only_happen_to_be_equally_long_shrink_apart():
    """2048 is the length of the heads together, and the width; 4096 is no multiple of either."""
    whole, rank = (
        parse_fx(SPLIT.format(cut=2048 // share, heads=32 // share, rows=2048 * 32 // share))
        for share in (1, 2)
    )
    given = stated_problem(whole, [rank] * 2, {"inputs": {"x": "concat 0", "y": "replica"}})
    small, _ = shrunk(given)
    heads, width = shape(small.sequential, "x")
    assert heads != width
    assert width == shape(small.sequential, "y")[0]
    assert heads == 2 * shape(small.ranks[0], "x")[0]
    assert isinstance(prove(given), Proof)


def test_a_constant_with_values_keeps_its_shape():
    graph = capture(lambda x: x + torch.tensor([4, 5, 6]),
                    [torch.zeros(1 << 20, 3)])  # fmt: skip
    given = stated_problem(graph, [graph], {"inputs": {graph.inputs[0].name: "replica"}})
    assert not affordable(given)
    small, _ = shrunk(given)
    rows, columns = shape(small.sequential, graph.inputs[0].name)
    assert rows < 100
    assert columns == 3
    assert isinstance(prove(given), Proof)


def test_the_dimension_that_counts_stacked_tensors_keeps_its_length():
    graph = capture(lambda x: torch.stack([x.sum(), x.amax(), x.mean(), x[0, 0]]).norm(),
                    [torch.zeros(1 << 20, 3)])  # fmt: skip
    given = stated_problem(graph, [graph], {"inputs": {graph.inputs[0].name: "replica"}})
    assert not affordable(given)
    assert shape(shrunk(given)[0].sequential, "stack") == [4]
    assert isinstance(prove(given), Proof)


def test_what_constants_of_the_graph_index_keeps_its_length():
    def step(table):
        return functional.embedding(torch.tensor([4, 0, 6]), table).sum(0)

    graph = capture(step, [torch.zeros(7, 1 << 20)])
    name = graph.inputs[0].name
    given = stated_problem(graph, [graph], {"inputs": {name: "replica"}})
    assert not affordable(given)
    rows, width = shape(shrunk(given)[0].sequential, name)
    assert rows == 7
    assert width < 100
    assert isinstance(prove(given), Proof)


def test_a_captured_forward_of_usual_sizes_shrinks_with_its_collectives_and_counts():
    # The rotary table divides by the size of a head, the loss by the number of tokens.
    found = captured(
        llama.train, {"tp": 2, "sp": True}, forward=True, layers=1, batch_size=2, microbatches=1,
        hidden=768, heads=24, kv_heads=8, seq_len=192, vocabulary=240,
    )  # fmt: skip
    given = stated_problem(found.sequential, found.ranks, found.relation)
    assert not affordable(given)
    small, _ = shrunk(given)
    assert max(shape(small.ranks[0], "tokens")) < 20
    assert isinstance(prove(given), Proof)


def test_the_rows_of_a_table_of_positions_shrink_with_the_positions():
    text = """
    def forward(self, table: "f32[4096, 512]"):
        arange: "i64[2048]" = torch.ops.aten.arange.default(2048)
        unsqueeze: "i64[1, 2048]" = torch.ops.aten.unsqueeze.default(arange, 0)
        rows: "f32[1, 2048, 512]" = torch.ops.aten.embedding.default(table, unsqueeze)
        return (rows,)
    """
    graph = parse_fx(text)
    given = stated_problem(graph, [graph, graph], {"inputs": {"table": "replica"}})
    small, _ = shrunk(given)
    rows, positions = shape(small.sequential, "table")[0], argument(small.sequential, "arange", 0)
    assert positions < rows < 100
    assert isinstance(prove(given), Proof)


ZIGZAG = """
    def forward(self, x: "f32[{rows}, 2000]"):
        exp: "f32[{rows}, 2000]" = torch.ops.aten.exp.default(x)
        return (exp,)
"""


def test_the_parts_of_a_zigzag_shrink_and_stay_two_for_each_rank():
    whole, rank = (parse_fx(ZIGZAG.format(rows=rows)) for rows in (3000, 1500))
    proof = prove(stated_problem(whole, [rank] * 2, {"inputs": {"x": "concat 0 zigzag"}}))
    assert isinstance(proof, Proof)
    assert shape(proof.problem.sequential, "x")[0] % 4 == 0
    assert shape(proof.problem.sequential, "x")[0] < 3000
    assert str(proof.outputs["exp"]) == "concat 0 over ranks zigzag of exp"
