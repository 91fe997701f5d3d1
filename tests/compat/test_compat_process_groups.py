"""Groups by name, the default store and the flight recorder of a process group of one rank."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from pytest_trainsafe.compat.distributed import process_groups
from pytest_trainsafe.compat.private import lacking


@pytest.mark.usefixtures("one_rank")
def test_a_group_is_found_by_its_name_its_mesh_and_itself() -> None:
    world: Any = dist.group.WORLD
    assert process_groups.default_group() is world
    assert process_groups.group_named(world.group_name) is world
    assert process_groups.group_named(world) is world
    assert process_groups.group_of(world, "") is world
    mesh = init_device_mesh("cpu", (1,))
    assert process_groups.group_of((mesh, 0), "") is mesh.get_group(0)
    assert process_groups.group_of(mesh.get_group(0).group_name, "") is mesh.get_group(0)


def test_there_is_no_default_group_before_torch_distributed_is_initialised() -> None:
    with pytest.raises(ValueError, match="not been initialized"):
        process_groups.default_group()
    assert list(process_groups.known_groups()) == []


@pytest.mark.usefixtures("one_rank")
def test_every_group_is_listed_with_its_ranks() -> None:
    other: Any = dist.new_group([0])
    names = {dist.group.WORLD.group_name, other.group_name}  # type: ignore[union-attr]
    assert dict(process_groups.known_groups()) == dict.fromkeys(names, (0,))


@pytest.mark.usefixtures("one_rank")
@pytest.mark.parametrize("options", [True, False])
def test_a_gather_without_options_is_the_same(
    options: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not options:
        monkeypatch.delattr("torch.distributed.distributed_c10d.AllgatherOptions")
    part = torch.zeros(3)
    process_groups.gathered(dist.group.WORLD, [part], torch.arange(3.0)).wait()
    assert part.tolist() == [0, 1, 2]


@pytest.mark.usefixtures("one_rank")
def test_the_default_store_keeps_what_a_rank_sets() -> None:
    store = process_groups.default_store()
    store.set("key", "value")
    assert process_groups.default_store().get("key") == b"value"


@pytest.mark.usefixtures("one_rank")
def test_the_module_of_functional_collectives_reduces_over_a_group() -> None:
    functional: Any = process_groups.functional_collectives()
    reduced = functional.all_reduce(torch.ones(2), "sum", dist.group.WORLD)
    assert functional.wait_tensor(reduced).tolist() == [1, 1]


def test_the_flight_recorder_returns_json() -> None:
    dump = process_groups.flight_recorder()
    assert dump is not None
    assert "entries" in json.loads(dump(True, False)) or json.loads(dump(True, False)) is not None


@pytest.mark.usefixtures("one_rank")
def test_without_its_names_collectives_run_and_nothing_is_found(without: Any) -> None:
    copy = without("distributed.process_groups")
    assert copy.default_group() is dist.group.WORLD
    assert copy.default_store() is None
    assert copy.functional_collectives() is None
    assert copy.flight_recorder() is None
    assert list(copy.known_groups()) == []
    assert copy.group_named("name") == copy.group_of("name", "") == "name"
    x = torch.ones(2)
    dist.all_reduce(x)
    assert x.tolist() == [1, 1]
    assert [why.partition(":")[0] for why in lacking()] == [
        "ranks do not exchange the shapes of shards",
        "process groups are not found by their names",
        "the flight recorder of torch is not read",
        "functional collectives are not recorded",
    ]
