"""Graphs of ranks are evaluated on exact numbers, a rank at a time up to its next collective."""

import pytest
import torch

from pytest_trainsafe.arithmetic import Doubles, ExactMode, Residues
from pytest_trainsafe.judges.refine.errors import (
    CannotSayError,
    GraphError,
    InputRelationError,
)
from pytest_trainsafe.judges.refine.evaluate.kernels import semantics
from pytest_trainsafe.judges.refine.evaluate.lockstep import evaluate
from pytest_trainsafe.judges.refine.evaluate.run import evaluated
from pytest_trainsafe.judges.refine.graphs.fx_text import parse_fx
from pytest_trainsafe.judges.refine.mesh import RankMesh
from tests.support.refine.graphs import RANK, mlp


def test_both_sides_of_a_correct_mlp_have_equal_residues_and_equal_doubles():
    doubles, exact = evaluated(mlp(), data_seed=3, seeds=[1])
    assert isinstance(exact.numbers, Residues)
    for rank in (0, 1):
        assert exact.sequential["index"].equal(exact.ranks[rank]["index"])
        assert torch.allclose(doubles.sequential["index"], doubles.ranks[rank]["index"])
    assert not exact.sequential["mm_1"].equal(exact.ranks[0]["mm_1"])
    assert exact.met["_c10d_functional.all_reduce"] == 1


def run(body, count=2, axes=None, groups=None, x=None):
    text = 'class G(torch.nn.Module):\n    def forward(self, x: "f32[4, 2]"):\n' + "".join(
        f"        {line}\n" for line in body
    )
    mesh = RankMesh(axes or {"tp": count}, groups or {})
    mode = ExactMode(Doubles(), semantics())
    given = [{"x": mode.enter(torch.full((4, 2), float(rank + 1)))} for rank in range(mesh.size)]
    return evaluate([parse_fx(text)] * mesh.size, given, mesh, mode)


def test_collectives_give_each_rank_what_torch_documents():
    ranks = run(
        [
            "r = torch.ops._c10d_functional.all_reduce.default(x, 'sum', '0')",
            "m = torch.ops._c10d_functional.all_reduce.default(x, 'max', '0')",
            "a = torch.ops._c10d_functional.all_reduce.default(x, 'avg', '0')",
            "g = torch.ops._c10d_functional.all_gather_into_tensor.default(x, 2, '0')",
            "s = torch.ops._c10d_functional.reduce_scatter_tensor.default(x, 'sum', 2, '0')",
            "b = torch.ops._c10d_functional.broadcast.default(x, 1, '0')",
            "t = torch.ops._c10d_functional.all_to_all_single.default(x, [2, 2], [2, 2], '0')",
            "return (r, m, a, g, s, b, t)",
        ]
    )
    assert [float(ranks[0][name][0, 0]) for name in "rmasb"] == [3, 2, 1.5, 3, 2]
    assert ranks[1]["g"][:, 0].tolist() == [1.0] * 4 + [2.0] * 4
    assert ranks[0]["s"].shape == (2, 2)
    assert ranks[1]["t"][:, 0].tolist() == [1.0, 1.0, 2.0, 2.0]


def test_groups_of_a_mesh_have_the_ranks_that_share_the_other_coordinates():
    body = [
        "r = torch.ops._c10d_functional.all_reduce.default(x, 'sum', 'rows')",
        "w = torch.ops._c10d_functional.all_reduce.default(x, 'sum', 'listed')",
        "return (r, w)",
    ]
    groups = {"rows": ("tp",), "listed": ((0, 3), (1, 2))}
    ranks = run(body, axes={"dp": 2, "tp": 2}, groups=groups)
    assert [float(each["r"][0, 0]) for each in ranks] == [3, 3, 7, 7]
    assert [float(each["w"][0, 0]) for each in ranks] == [5, 5, 5, 5]
    with pytest.raises(CannotSayError, match="which axes of the mesh"):
        run(body, axes={"dp": 2, "tp": 2})


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("'sum', '0'", "'max', '0'", "do not match"),
        ("all_reduce.default(mm_1, 'sum'", "all_reduce.default(gelu, 'sum'", "do not match"),
        (
            "wait_tensor.default(all_reduce)",
            "all_reduce.default(all_reduce, 'sum', '0')",
            "for ever",
        ),
    ],
)
def test_collectives_that_do_not_match_are_named(old, new, said):
    wrong = RANK.replace(old, new).replace(
        '"f32[4, 6]" = torch.ops._c10d', '"f32" = torch.ops._c10d'
    )
    wrong = wrong.replace(': "f32" =', " =")
    with pytest.raises(GraphError, match=said) as raised:
        list(evaluated(mlp(RANK, wrong), 0, [1]))
    assert "rank 1" in str(raised.value)


def test_a_stated_group_size_that_does_not_fit_is_named():
    with pytest.raises(GraphError, match="states a group of 4 ranks"):
        run(
            [
                "g = torch.ops._c10d_functional.all_gather_into_tensor.default(x, 4, '0')",
                "return (g,)",
            ]
        )


@pytest.mark.parametrize(
    ("line", "operator"),
    [
        ("torch.ops.mylib.kernel.default(mm)", "mylib.kernel"),
        ("torch.ops.aten.from_file.default('/etc/passwd', False, 4)", "aten.from_file"),
        ("torch.ops.aten.bernoulli.default(mm)", "aten.bernoulli"),
        ("torch.ops._c10d_functional.all_reduce_coalesced.default([mm], 'sum', '0')", "coalesced"),
    ],
)
def test_operators_without_semantics_are_named_with_their_line(line, operator):
    text = RANK.replace("torch.ops.aten.gelu.default(mm)", line)
    with pytest.raises(CannotSayError, match=r"rank0\.txt:5") as raised:
        list(evaluated(mlp(text, text), 0, [1]))
    assert operator in str(raised.value)


@pytest.mark.parametrize(
    "line",
    [
        "torch.ops.aten.zeros.default([100000, 100000])",
        "torch.ops.aten.repeat.default(x, [100000, 100000])",
        "torch.ops.aten.expand.default(x, [10000000, 4, 2])",
    ],
)
def test_tensors_too_large_for_memory_are_refused(line):
    with pytest.raises(CannotSayError, match="too large"):
        run([f"y = {line}", "return (y,)"])


@pytest.mark.parametrize(
    "line",
    ["aten.repeat_interleave.Tensor(c)", "aten.repeat_interleave.self_Tensor(x, c)",
     "aten.bincount.default(c)"],
)  # fmt: skip
def test_tensors_too_large_because_of_the_values_of_another_are_refused(line):
    counts = "c = torch.ops.aten.full.default([4], 4398046511104, dtype = torch.int64)"
    with pytest.raises(CannotSayError, match="too large"):
        run([counts, f"y = torch.ops.{line}", "return (y,)"])


def test_shapes_that_contradict_the_graph_are_named():
    wrong = RANK.replace('mm: "f32[4, 4]"', 'mm: "f32[4, 5]"')
    with pytest.raises(GraphError, match=r"stated to have the shape \[4, 5\]"):
        list(evaluated(mlp(wrong, RANK), 0, [1]))
    with pytest.raises(GraphError, match="cannot be computed"):
        run(["y = torch.ops.aten.mm.default(x, x)", "return (y,)"])


@pytest.mark.parametrize(
    ("inputs", "said"),
    [
        ({"up": "concat 0"}, "relation gives it"),
        ({"up": "concat 5"}, "no dimension 5"),
        ({"ids": "sum"}, "cannot be a sum"),
        ({"up": "concat 1 by 3"}, "cannot be cut"),
        ({"up": "concat 1 over dp"}, "no axis dp"),
        ({"up": "half"}, "is no relation"),
        ({"up": "concat 1 zigzag by 2"}, "is no relation"),
        ({"up": "sum zigzag"}, "is no relation"),
    ],
)
def test_relations_that_do_not_fit_are_named(inputs, said):
    stated = {"x": "replica", "ids": "replica", "up": "concat 1", "down": "concat 0"} | inputs
    with pytest.raises(InputRelationError, match=said):
        list(evaluated(mlp(inputs=stated), 0, [1]))


def test_an_operator_that_writes_in_place_changes_no_earlier_result():
    ranks = run(
        [
            "y = torch.ops.aten.mul.Tensor(x, 2)",
            "z = torch.ops.aten.add_.Tensor(y, 1)",
            "r = torch.ops._c10d_functional.all_reduce_.default(z, 'sum', '0')",
            "w = torch.ops.aten.mul.Tensor(y, 1)",
            "return (w,)",
        ]
    )
    assert [float(ranks[0][name][0, 0]) for name in "yzrw"] == [2, 3, 8, 8]
