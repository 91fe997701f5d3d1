"""torch keeps the process groups of a rank where `rank_worlds` looks for them."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from pytest_trainsafe.compat.distributed import rank_worlds
from pytest_trainsafe.compat.distributed.rank_worlds import RENAMED, RankWorld


def test_a_world_of_our_own_keeps_everything_that_torchs_keeps() -> None:
    """Otherwise ranks would share what a newer release of torch adds."""
    assert rank_worlds.own_properties() == set()


def test_two_worlds_know_different_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch asks the object that is in place."""
    worlds = RankWorld(), RankWorld()
    for rank, world in enumerate(worlds):
        monkeypatch.setattr(c10d, "_world", world)
        assert not dist.is_initialized()
        store: Any = torch._C._distributed_c10d.HashStore()
        if rank == 0:
            dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    assert not dist.is_initialized()
    monkeypatch.setattr(c10d, "_world", worlds[0])
    assert dist.is_initialized()
    dist.destroy_process_group()


def test_torch_names_the_modules_attributes_that_a_rank_has() -> None:
    """They are exchanged by name."""
    module, names = rank_worlds.WORLD
    assert module == c10d.__name__
    assert all(hasattr(c10d, name) for name in names)


def test_the_helper_that_creates_groups_has_the_expected_parameters() -> None:
    """The backend is replaced by its position."""
    parameters = list(inspect.signature(c10d._new_process_group_helper).parameters)
    expected = ["group_size", "group_rank", "global_ranks_in_group", "backend"]
    assert parameters[:4] == expected


def test_torch_calls_a_process_group_by_one_of_the_known_names() -> None:
    """The old or the new name of each collective exists."""
    group = dist.ProcessGroup
    for old, new in RENAMED.items():
        assert hasattr(group, old) or hasattr(group, new)


def test_threads_can_be_isolated() -> None:
    """A name then denotes the group that the thread registered."""
    rank_worlds.isolate_threads(True)
    rank_worlds.isolate_threads(False)
