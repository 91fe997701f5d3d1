"""Who wrote last what an operator reads: views of a tensor may overwrite parts of it."""

import pytest
import torch

from pytest_trainsafe.judges.refine.evaluate.memory import place_of, reads
from pytest_trainsafe.judges.refine.graphs.fx_text import parse_fx

GRAPH = parse_fx("""
    def forward(self, x: "f32[4, 2]", y: "f32[4]"):
        first: "f32[4]" = torch.ops.aten.select.int(x, 1, 0)
        second: "f32[4]" = torch.ops.aten.select.int(x, 1, 1)
        before: "f32[4, 2]" = torch.ops.aten.exp.default(x)
        one_: "f32[4]" = torch.ops.aten.copy_.default(first, y)
        part: "f32[4, 2]" = torch.ops.aten.exp.default(x)
        two_: "f32[4]" = torch.ops.aten.add_.Tensor(second, y)
        all: "f32[4, 2]" = torch.ops.aten.exp.default(x)
        again_: "f32[4]" = torch.ops.aten.mul_.Tensor(first, y)
        last: "f32[4, 2]" = torch.ops.aten.exp.default(x)
        column: "f32[4]" = torch.ops.aten.exp.default(second)
        return (first, last)
""")


def found():
    x, y = torch.rand(4, 2), torch.rand(4)
    values = {"x": x, "y": y, "first": x[:, 0], "second": x[:, 1], "one_": x[:, 0]}
    values |= {"two_": x[:, 1], "again_": x[:, 0]}
    values |= {name: torch.rand(4) for name in ("before", "part", "all", "last", "column")}
    return reads(GRAPH, {name: place_of(each) for name, each in values.items()})


@pytest.mark.parametrize(
    ("operator", "taken", "holding"),
    [
        ("before", "x", None),
        ("part", "x", ("one_", "x")),
        ("all", "x", ("two_", "one_")),
        ("last", "x", ("again_", "two_")),
        ("column", "second", ("two_",)),
        ("again_", "first", ("one_",)),
        ("first", "first", ("again_",)),
        ("last", "last", None),
    ],
)
def test_the_last_writers_of_the_elements_hold_what_is_read(operator, taken, holding):
    assert found().get(operator, {}).get(taken) == holding
