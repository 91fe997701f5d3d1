"""`torchrun_group` runs functions in new ranks and returns their values."""

from __future__ import annotations

import os

import pytest


def who_am_i(greeting: str) -> tuple[str, int, int]:
    return greeting, int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


def refuse() -> None:
    raise ValueError(f"not on rank {os.environ['RANK']}")


def test_torchrun_group_returns_one_value_per_rank(torchrun_group):
    values = torchrun_group.run(who_am_i, "hello", world_size=2)

    assert values == [("hello", 0, 2), ("hello", 1, 2)]


@pytest.mark.trainsafe("pytest_trainsafe.reference_models.gpt:train", tp=2)
def test_torchrun_group_has_the_world_size_of_the_point(torchrun_group):
    assert [value[2] for value in torchrun_group.run(who_am_i, "hello")] == [2, 2]


def test_torchrun_group_without_a_point_requires_world_size(torchrun_group):
    with pytest.raises(ValueError, match="needs world_size="):
        torchrun_group.run(who_am_i, "hello")


def test_an_exception_in_a_rank_is_in_the_message_of_the_group_failure(torchrun_group):
    from pytest_trainsafe.launch import GroupFailure

    with pytest.raises(GroupFailure, match="ValueError: not on rank"):
        torchrun_group.run(refuse, world_size=1)
