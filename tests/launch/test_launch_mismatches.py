"""Ranks that disagree on a collective fail, also where gloo says nothing."""

from __future__ import annotations

import re
from collections.abc import Callable

import launch_programs
from launch_programs import Launch

Failure = Callable[..., str]
SAME = "collective mismatch: collective {} of the group of ranks [0, 1] differs"


def test_what_gloo_answers_with_garbage_is_caught(launch: Launch) -> None:
    result = launch(launch_programs.silent_mismatches)
    assert [rank.status for rank in result.ranks] == ["ok", "ok"]
    assert not result.ok
    sites = re.compile(r" at \S*launch_programs\.py:\d+")
    mistakes = [
        (
            f"{SAME.format(2)} (reduction): "
            "rank 0 all_reduce(SUM) of 4 float32; rank 1 all_reduce(MAX) of 4 float32"
        ),
        (
            f"{SAME.format(1)} (dtype): "
            "rank 0 all_reduce(SUM) of 4 float32; rank 1 all_reduce(SUM) of 4 int32"
        ),
        (
            f"{SAME.format(1)} (the same tensors in another order): "
            "rank 0 all_reduce(SUM) of 2x2 float32 (first.weight); "
            "rank 1 all_reduce(SUM) of 2x2 float32 (second.weight)"
        ),
        (
            "collective mismatch: send 1 from rank 0 to rank 1 does not fit its recv: "
            "rank 0 send to rank 1 of 4 float32; rank 1 recv from rank 0 of 8 float32"
        ),
    ]
    assert [sites.sub("", text) for text in result.mismatches] == mistakes


def test_a_collective_that_only_one_rank_makes_is_named(failure: Failure) -> None:
    lines = failure(launch_programs.one_collective_too_many, timeout=2).splitlines()
    assert lines[0].startswith(
        "collective mismatch: collective 2 of the group of ranks [0, 1] is made by rank 0 "
        "but not by rank 1, which finished after 1: rank 0 all_reduce(SUM) of 4 float32 at "
    )
    assert "1 of 2 ranks still ran after 2 s; rank 1 differs" in lines


def test_ranks_that_believe_in_different_worlds_are_named(failure: Failure) -> None:
    headline = failure(launch_programs.other_world, timeout=2).splitlines()[0]
    assert "differs (arguments): rank 0 init_process_group(gloo, world_size=2)" in headline
    assert "rank 1 init_process_group(gloo, world_size=3)" in headline


def test_collectives_used_as_they_are_meant_to_be_pass(launch: Launch) -> None:
    assert launch(launch_programs.every_collective, world_size=4).values == [None] * 4
