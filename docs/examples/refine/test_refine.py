"""The example of docs/refine.md: a tensor-parallel MLP refines the sequential one."""

from pathlib import Path

from pytest_trainsafe import assert_refines

HERE = Path(__file__).parent


def test_the_mlp_of_two_ranks_refines_the_sequential_one():
    rank = HERE / "rank.fx.txt"
    assert_refines(HERE / "sequential.fx.txt", [rank, rank], HERE / "relation.yaml")
