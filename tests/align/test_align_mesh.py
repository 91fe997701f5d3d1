"""On a mesh that a program declares, layouts name its axes or roles, and ranks follow its order."""

from __future__ import annotations

import pytest
import torch

from pytest_trainsafe.align.merge import Merged, Part, merge
from pytest_trainsafe.annotations.declared import Annotations
from pytest_trainsafe.core.indices import extract
from pytest_trainsafe.core.layout import (
    Flat,
    Layout,
    Owned,
    Partial,
    Scaled,
    Shard,
    Striped,
    ZigZag,
)
from pytest_trainsafe.core.mesh import Mesh, moved, rank_at, ranks_along
from pytest_trainsafe.core.point import Point
from pytest_trainsafe.judges.compare.patterns.partial_sum import partial_sum
from pytest_trainsafe.judges.compare.patterns.scale import scaled
from pytest_trainsafe.judges.compare.patterns.wrong_tensor import WrongTensor
from pytest_trainsafe.record.model.parameter_layout import parameter_layout

ROLES = {"dp_replicate": "dp", "dp_shard": "dp", "ring": "cp", "heads": "cp"}
HYBRID = Mesh("tp", "dp_replicate", "dp_shard", roles={n: ROLES[n] for n in list(ROLES)[:2]})
CONTEXT = Mesh("ring", "tp", "heads", roles={n: ROLES[n] for n in list(ROLES)[2:]})
POINT = Point.of(mesh=HYBRID, tp=2, dp_replicate=2, dp_shard=2)
FULL = torch.arange(30.0).view(10, 3)


def parts_of(layout: Layout, point: Point = POINT, full: torch.Tensor = FULL) -> list[Part]:
    where = [point.coordinates(rank) for rank in range(point.world_size)]
    cut = [extract(full, layout, at, point.sizes).clone() for at in where]
    return [Part(r, at, t, layout) for r, (at, t) in enumerate(zip(where, cut, strict=True))]


def messages(merged: Merged) -> str:
    return "; ".join(f"{finding.check}: {finding.message}" for finding in merged.findings)


def test_the_last_mesh_axis_varies_fastest_over_ranks() -> None:
    assert dict(POINT.coordinates(6)) == {"dp_shard": 0, "dp_replicate": 1, "tp": 1}
    assert [rank_at(POINT.coordinates(rank), POINT.sizes) for rank in range(8)] == [*range(8)]


def test_a_role_numbers_ranks_by_its_axes_in_mesh_order() -> None:
    assert [POINT.coordinates(rank)["dp"] for rank in range(8)] == [0, 1, 2, 3, 0, 1, 2, 3]
    assert (POINT.sizes["dp"], POINT.sizes["pp"], POINT.coordinates(7)["pp"]) == (4, 1, 0)
    assert dict(moved(POINT.coordinates(1), POINT.sizes, "dp", 2)) == dict(POINT.coordinates(2))


def test_rank_groups_are_formed_along_axes_roles_and_overlapping_axes() -> None:
    mesh = Mesh("dp", "tp", "cp", overlaps={"ep": ("dp", "cp")})
    point = Point.of(mesh=mesh, dp=2, tp=2, cp=2, ep=2)
    assert ranks_along(POINT.sizes, "dp") == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert ranks_along(POINT.sizes, "tp") == [[0, 4], [1, 5], [2, 6], [3, 7]]
    assert ranks_along(POINT.sizes, "pp") == [[rank] for rank in range(8)]
    assert ranks_along(point.sizes, "ep") == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert [point.coordinates(rank)["ep"] for rank in range(4)] == [0, 1, 0, 1]
    assert "ep" not in Point.of(dp=2, tp=2, ep=4).coordinates(0).derived  # 4 does not divide dp


@pytest.mark.parametrize(
    ("mesh", "layout"),
    [
        (HYBRID, (Shard(0, "dp"),)),  # 10 rows over 4 ranks: one torch.chunk, not two nested ones
        (HYBRID, (Shard(0, "dp_shard"), Shard(1, "tp"))),
        (HYBRID, (Shard(1, "tp"), Partial("dp"))),
        (HYBRID, (Partial("dp_replicate"), Shard(0, "dp_shard"))),
        (CONTEXT, (ZigZag(0, "cp"), Shard(1, "tp"))),
        (CONTEXT, (Striped(0, "cp"), Shard(1, "tp"))),
        (CONTEXT, (Shard(0, "heads"), ZigZag(0, "ring"))),
    ],
)
def test_parts_extracted_on_a_declared_mesh_merge_into_the_full_tensor(
    mesh: Mesh, layout: Layout
) -> None:
    point = Point.of(dict.fromkeys(mesh.axes, 2), mesh=mesh)
    full = torch.arange(48.0).view(16, 3) if mesh is CONTEXT else FULL

    merged = merge(parts_of(layout, point, full), point.sizes)

    assert messages(merged) == ""
    assert merged.tensor is not None
    assert torch.equal(merged.tensor, full.double())


def test_differing_replicas_are_reported_over_the_declared_mesh_axis() -> None:
    parts = parts_of((Shard(0, "dp_shard"),))
    for rank in (2, 3, 6, 7):
        parts[rank].tensor.add_(1)

    assert "replicas over dp_replicate differ: rank" in messages(merge(parts, POINT.sizes))


def test_a_missing_part_is_reported_with_its_rank_in_mesh_order() -> None:
    parts = parts_of((Shard(0, "dp_shard"),))

    merged = merge([part for part in parts if part.rank != 6], POINT.sizes)

    assert messages(merged).startswith("missing: rank 6 should hold a replica")


def test_a_micro_batch_tensor_is_complete_on_one_coordinate_of_the_dp_role() -> None:
    held = [part for part in parts_of((Shard(1, "tp"),)) if part.coordinates["dp"] == 2]

    merged = merge(held, POINT.sizes, free_axes=("pp", "dp"))

    assert messages(merged) == ""


def test_flat_ranges_are_merged_along_a_role() -> None:
    parts = []
    for rank in range(8):
        at = POINT.coordinates(rank)
        flat = Flat(6 * at["dp"], 6, (8, 3), ("dp",))
        parts.append(Part(rank, at, torch.arange(24.0)[flat.offset :][:6], (flat,)))

    merged = merge(parts, POINT.sizes)

    assert messages(merged) == ""
    assert merged.tensor is not None
    assert torch.equal(merged.tensor, torch.arange(24.0).view(8, 3).double())


def test_expert_owners_follow_the_axis_order_of_the_mesh() -> None:
    mesh = Mesh(*HYBRID.axes, roles={n: ROLES[n] for n in list(ROLES)[:2]},
                overlaps={"ep": ("dp_shard", "dp_replicate")})  # fmt: skip
    weight = torch.nn.Parameter(torch.zeros(2))
    weight.allreduce = False  # type: ignore[attr-defined]
    point = Point.of(mesh=mesh, tp=2, dp_replicate=2, dp_shard=2, ep=2)

    (owned,), _ = parameter_layout("w", weight, point, Annotations.empty())

    assert owned == Owned(("dp_replicate", "dp_shard"), 2)
    owners = [owned.owner(point.coordinates(rank), point.sizes) for rank in range(4)]
    assert owners == [0, 0, 1, 1]  # owners are numbered along dp_replicate


def wrong(parts: list[Part], value: torch.Tensor) -> WrongTensor:
    return WrongTensor(value, FULL.double(), parts, POINT.sizes, allowed=1e-12, kind="main_grad")


def test_a_missing_sum_over_one_axis_of_a_role_is_reported_for_that_axis() -> None:
    share = {0: 0.25, 1: 0.75}
    parts = [
        Part(part.rank, part.coordinates, part.tensor * share[part.coordinates["dp_replicate"]])
        for part in parts_of(())
    ]

    found = partial_sum(wrong(parts, parts[0].tensor.double()))

    assert found is not None
    assert found.axis == "dp_replicate"


def test_a_wrong_factor_is_attributed_to_an_axis_without_a_scaled_layout() -> None:
    parts = parts_of((Scaled("dp_shard"),))

    found = scaled(wrong(parts, 2 * FULL.double()))

    assert found is not None
    assert found.axis == "dp_replicate"
