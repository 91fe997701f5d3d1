"""Only the owners of an expert, some of the dp and cp ranks, must hold its tensors."""

from __future__ import annotations

import torch

from pytest_trainsafe.align.merge import Part, merge
from pytest_trainsafe.core.layout import Layout, Owned, Shard
from pytest_trainsafe.core.point import Point

FULL = torch.arange(12.0, dtype=torch.float64).view(4, 3)
OWNED = Owned(("cp", "dp"), 2)


def parts(point: Point, ranks: list[int], layout: Layout = (OWNED,)) -> list[Part]:
    """The parts of FULL that these ranks hold, sharded over tp if the layout has a Shard."""
    cut = any(isinstance(placement, Shard) for placement in layout)
    return [
        Part(rank, where, FULL.chunk(2)[where["tp"]] if cut else FULL, layout)
        for rank in ranks
        for where in [point.coordinates(rank)]
    ]


def test_owner_numbers_vary_fastest_along_cp() -> None:
    point = Point.of(tp=2, cp=2, dp=2)
    owners = [OWNED.owner(point.coordinates(rank), point.sizes) for rank in range(8)]

    assert owners == [0, 0, 1, 1, 0, 0, 1, 1]
    four = Owned(("cp", "dp"), 4)
    owners = [four.owner(point.coordinates(rank), point.sizes) for rank in range(8)]
    assert owners == [0, 0, 1, 1, 2, 2, 3, 3]


def test_an_expert_is_complete_if_its_owners_alone_hold_it() -> None:
    point = Point.of(dp=4)

    merged = merge(parts(point, [1, 3]), point.sizes)

    assert merged.findings == []
    assert merged.tensor is not None
    assert torch.equal(merged.tensor, FULL)


def test_only_an_owner_without_its_expert_is_reported_as_missing() -> None:
    point = Point.of(dp=4)

    [finding] = merge(parts(point, [1]), point.sizes).findings

    assert finding.check == "missing"
    assert "rank 3 should hold a replica" in finding.message
    assert "owned by one in 2 ranks over cp, dp" in finding.message


def test_replicas_of_an_expert_are_compared() -> None:
    point = Point.of(dp=4)
    [first] = parts(point, [0])
    odd = Part(2, point.coordinates(2), FULL + 1, (OWNED,))

    [finding] = merge([first, odd], point.sizes).findings

    assert finding.check == "replicas"
    assert "over dp differ: rank 2 from rank 0" in finding.message


def test_an_expert_may_also_be_sharded_over_tp() -> None:
    point = Point.of(tp=2, dp=2)
    layout = (Shard(0, "tp"), OWNED)

    merged = merge(parts(point, [2, 3], layout), point.sizes)
    [finding] = merge(parts(point, [3], layout), point.sizes, shape=(4, 3)).findings[:1]

    assert merged.findings == []
    assert merged.tensor is not None
    assert torch.equal(merged.tensor, FULL)
    assert finding.check == "hole"
    assert "rank 2 recorded no part" in finding.message


def test_experts_with_their_own_tp_size_are_owned_across_tp_ranks() -> None:
    point = Point.of(tp=2, cp=1, dp=2)
    one = Owned(("tp", "cp", "dp"), 2, 1)
    two = Owned(("tp", "cp", "dp"), 2, 2)

    owners = [[o.owner(point.coordinates(r), point.sizes) for r in range(4)] for o in (one, two)]
    assert owners == [[0, 1, 0, 1], [0, 0, 1, 1]]
    assert merge(parts(point, [1, 3], (one,)), point.sizes).findings == []
    [finding] = merge(parts(point, [1], (one,)), point.sizes).findings
    assert "rank 3 should hold a replica" in finding.message
