"""Symbolic sizes: proved for several numbers that satisfy what is assumed of them."""

from typing import Any

import msgspec
import pytest
import torch

from pytest_trainsafe import TrainsafeFailure, assert_refines
from pytest_trainsafe.judges.refine.certificate.checker import check
from pytest_trainsafe.judges.refine.errors import CertificateError, GraphError, InputRelationError
from pytest_trainsafe.judges.refine.graphs.fx_text import parse_fx
from pytest_trainsafe.judges.refine.graphs.modules import graph_of_module
from pytest_trainsafe.judges.refine.graphs.symbols import evaluate, with_numbers

SEQUENTIAL = """
    def forward(self, n: "Sym(u0)", x: "f32[u0, 6]", w: "f32[6, 8]"):
        quarter: "Sym((u0//4))" = n // 4
        mm: "f32[u0, 8]" = torch.ops.aten.mm.default(x, w)
        view: "f32[(u0//4), 32]" = torch.ops.aten.view.default(mm, [quarter, 32])
        sum_1: "f32[(u0//4)]" = torch.ops.aten.sum.dim_IntList(view, [1])
        return (sum_1, n)
"""
RANK = """
    def forward(self, n: "Sym(u0)", x: "f32[u0, 6]", w: "f32[6, 4]"):
        quarter: "Sym((u0//4))" = n // 4
        mm: "f32[u0, 4]" = torch.ops.aten.mm.default(x, w)
        view: "f32[(u0//4), 16]" = torch.ops.aten.view.default(mm, [quarter, 16])
        sum_1: "f32[(u0//4)]" = torch.ops.aten.sum.dim_IntList(view, [1])
        total: "f32[(u0//4)]" = torch.ops._c10d_functional.all_reduce.default(sum_1, 'sum', '0')
        wait: "f32[(u0//4)]" = torch.ops._c10d_functional.wait_tensor.default(total)
        return (wait, n)
"""
RELATION: dict[str, Any] = {
    "mesh": {"tp": 2},
    "inputs": {"x": "replica", "w": "concat 1"},
    "assume": ["u0 % 4 == 0"],
}


def proved(**changes):
    return assert_refines(SEQUENTIAL, [RANK] * 2, RELATION | changes)


def test_the_certificate_lists_the_assumption_and_the_values():
    certificate = proved()
    assert certificate.assume == ["u0 % 4 == 0"]
    values = [each.symbols["u0"] for each in (certificate, *certificate.others)]
    assert values == [4, 8, 12]
    assert proved(values={"u0": [16, 40]}).others[0].symbols == {"u0": 40}


ROW = """
    def forward(self, x: "f32[u0, 6]"):
        row: "f32[1, 6]" = torch.ops.aten.slice.Tensor(x, 0, {start}, 9223372036854775807)
        return (row,)
"""


def test_a_fault_that_only_some_sizes_show_is_found_with_its_size():
    """The last row is the second of two, and not of three."""
    second, last = ROW.format(start=1), ROW.format(start=-1)
    relation: dict[str, Any] = {"inputs": {"x": "replica"}, "values": {"u0": 2}}
    assert assert_refines(second, [last], relation).symbols == {"u0": 2}
    second = second.replace("9223372036854775807", "2")
    with pytest.raises(TrainsafeFailure, match=r"sizes +u0=3"):
        assert_refines(second, [last], relation | {"values": {"u0": [2, 3]}})


def test_ranks_may_have_other_sizes():
    rank = RANK.replace("u0", "s1").replace('w: "f32[6, 4]"', 'w: "f32[6, 8]"')
    rank = rank.replace('4]"', '8]"').replace("16]", "32]")
    rank = "\n".join(line for line in rank.split("\n") if "_functional" not in line)
    rank = rank.replace("return (wait, n)", "return (sum_1, n)")
    certificate = assert_refines(SEQUENTIAL, [rank] * 2, {
        "mesh": {"dp": 2},
        "inputs": {"x": "concat 0", "w": "replica"},
        "assume": ["u0 % 8 == 0"],
        "ranks": {"s1": "u0 // 2"},
    })  # fmt: skip
    assert certificate.symbols == {"u0": 8}
    assert certificate.outputs == {"sum_1": "concat 0 over dp of sum_1"}


@pytest.mark.parametrize(
    ("changes", "error", "said"),
    [
        ({"assume": ["u1 > 2"]}, InputRelationError, "speaks of u1"),
        ({"assume": ["__import__('os')"]}, InputRelationError, "speaks of __import__"),
        ({"assume": ["u0 % 4 == 1", "u0 % 2 == 0"]}, TrainsafeFailure, "no values of u0"),
        ({"assume": []}, GraphError, "cannot be computed"),
        ({"values": {"u0": [1]}}, InputRelationError, "integers above 1 for u0"),
        ({"ranks": {"u0": "u0 +"}}, InputRelationError, "no expression of sizes"),
    ],
)
def test_what_does_not_fit_is_named(changes, error, said):
    with pytest.raises(error, match=said):
        proved(**changes)


def test_a_size_that_the_graph_contradicts_is_named():
    graph = parse_fx(SEQUENTIAL.replace("n // 4", "n // 2"), "given")
    with pytest.raises(GraphError, match=r"given:3: quarter is stated to be .* = 2, but is 4"):
        with_numbers(graph, {"u0": 8})


@pytest.mark.parametrize("text", ["2**99", "u0.real", "f(u0)", "u0 / 2", "(" * 60, "'a'", "9" * 99])
def test_only_bounded_arithmetic_is_evaluated(text):
    with pytest.raises(GraphError):
        evaluate(text, {"u0": 4})


@pytest.mark.parametrize("edit", ["value", "assumption", "other"])
def test_an_edited_size_is_refused(edit):
    certificate = proved()
    plain = msgspec.to_builtins(certificate)
    if edit == "value":
        plain["symbols"]["u0"] = 6
    elif edit == "assumption":
        plain["assume"] = ["u0 % 2 == 0"]
    else:
        plain["others"][0]["symbols"] = {"u0": 4}
    edited = msgspec.convert(plain, type(certificate)).whole()
    with pytest.raises(CertificateError):
        check(edited, parse_fx(SEQUENTIAL), [parse_fx(RANK)] * 2)
    assert check(certificate, parse_fx(SEQUENTIAL), [parse_fx(RANK)] * 2) > 6


class Block(torch.nn.Module):
    def forward(self, x, w):
        return (x @ w).view(x.shape[0] // 2, -1).sum(1)


@pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")
def test_an_exported_program_has_symbolic_sizes():
    rows = 2 * torch.export.Dim("half", min=2, max=64)
    exported = torch.export.export(
        Block(), (torch.randn(8, 6), torch.randn(6, 4)), dynamic_shapes=({0: rows}, None)
    )
    graph = graph_of_module(exported.run_decompositions(), "exported")
    certificate = assert_refines(graph, [graph], {"inputs": {"x, w": "replica"}})
    assert len(certificate.others) == 2
