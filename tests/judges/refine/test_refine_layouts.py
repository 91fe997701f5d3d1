"""Layouts explain how ranks hold tensors and warn early; they decide nothing."""

import pytest
import torch

from pytest_trainsafe import TrainsafeFailure, assert_refines
from pytest_trainsafe.judges.refine.command import main
from pytest_trainsafe.judges.refine.evaluate.run import evaluated
from pytest_trainsafe.judges.refine.graphs.hlo_text import parse_hlo
from pytest_trainsafe.judges.refine.layouts import layouts, lines
from pytest_trainsafe.judges.refine.problem.declared import stated_problem
from tests.support.refine.graphs import RANK, RELATION, SEQUENTIAL, mlp
from tests.support.refine.hlo_block import block, relation


def hlo(ranks, **changes):
    rank = parse_hlo(block(ranks, **changes))
    return stated_problem(parse_hlo(block()), [rank] * ranks, relation(ranks))


def test_a_block_in_full_sizes_has_a_layout_for_every_tensor_and_no_warning():
    (found,) = layouts(hlo(4))
    assert found.warnings == []
    kinds = [each.kind for each in found.of.values()]
    assert kinds.count("unknown") == 0
    assert {"whole", "cut", "sum"} <= set(kinds)


def test_what_a_layout_calls_whole_is_equal_on_all_ranks():
    problem = mlp()
    (found,) = layouts(problem)
    (doubles,) = evaluated(problem, 3, [])
    whole = [name for name, each in found.of.items() if each.kind == "whole"]
    assert {"x", "wait", "add", "index"} <= set(whole)
    for name in whole:
        first, second = (rank[name] for rank in doubles.ranks)
        assert torch.equal(first, second), name
    assert str(found.of["mm"]) == "cut along 1"
    assert str(found.of["mm_1"]) == "a sum"


@pytest.mark.parametrize(
    ("old", "new", "warning"),
    [
        ("add.Tensor(x, wait)", "add.Tensor(x, mm_1)", "an all-reduce may be missing"),
        ("mm.default(gelu, down)", "mm.default(gelu, up)", "multiplies gelu, which is cut along 1"),
        ("all_reduce.default(mm_1", "all_reduce.default(x", "adds x, which is whole on each rank"),
    ],
)
def test_what_looks_wrong_is_said(old, new, warning):
    problem = mlp(*[RANK.replace(old, new)] * 2)
    found = layouts(problem)
    assert warning in found[0].warnings[0][1]
    assert any(f"{warning}" in line for line in lines(found, problem.ranks[0]))


def test_a_warning_decides_nothing_and_stands_in_the_report_of_a_refutation():
    """Adding the negative of a whole tensor to a sum on each rank looks wrong, and is right."""
    rank = RANK.replace(
        "add.Tensor(x, wait)", "add.Tensor(x, wait)\n        odd: \"f32[4, 6]\" = "
        "torch.ops.aten.add.Tensor(x, mm_1)"
    )  # fmt: skip
    assert layouts(mlp(rank, rank))[0].warnings
    assert assert_refines(SEQUENTIAL, [rank] * 2, RELATION).outputs
    rank = RANK.replace("add.Tensor(x, wait)", "add.Tensor(x, mm_1)")
    with pytest.raises(TrainsafeFailure, match=r"layouts +add = aten\.add .* may be missing"):
        assert_refines(SEQUENTIAL, [rank] * 2, RELATION)


def test_the_command_prints_layouts_in_place_of_a_proof(tmp_path, capsys):
    sequential, rank = tmp_path / "sequential.hlo.txt", tmp_path / "rank.hlo.txt"
    sequential.write_text(block())
    rank.write_text(block(2))
    declared = tmp_path / "relation.yaml"
    parts = relation(2)["inputs"]["qkv"]
    declared.write_text(
        f"mesh: {{tp: 2}}\ninputs:\n  x, angles: replica\n  qkv: {parts}\n"
        "  out, down: concat 0\n  up, gate: concat 1\n"
    )
    files = [str(sequential), str(rank), "--ranks", "2", "--relation", str(declared)]
    assert main([*files, "--layouts"]) == 0
    assert "out: cut along 0 over tp" in capsys.readouterr().out
    assert main(files) == 0
    assert "proved" in capsys.readouterr().out
    assert main([*files, "--ranks", "0"]) == 2
