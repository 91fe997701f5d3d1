"""A collective mismatch between ranks fails the group, also if gloo raises no error."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from pytest_trainsafe.launch import raise_for_failure
from pytest_trainsafe.launch.collectives.flight import read_flight
from tests.support.launch import programs
from tests.support.launch.programs import PROCESSES, Launch

# What gloo and torch's flight recorder do; `threads/` has the tests of ranks that are threads.
pytestmark = pytest.mark.parametrize("launcher", PROCESSES, indirect=True)

Failure = Callable[..., str]
SAME = "collective mismatch: collective {} of the group of ranks [0, 1] differs"


def test_mismatches_that_gloo_does_not_detect_are_reported(launch: Launch) -> None:
    result = launch(programs.silent_mismatches)
    assert [rank.status for rank in result.ranks] == ["ok", "ok"]
    assert not result.ok
    sites = re.compile(r" at \S*programs\.py:\d+")
    expected = [
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
    assert [sites.sub("", text) for text in result.mismatches] == expected


def test_ranks_with_different_world_sizes_are_named(failure: Failure) -> None:
    headline = failure(programs.other_world, timeout=2).splitlines()[0]
    assert "differs (arguments): rank 0 init_process_group(gloo, world_size=2)" in headline
    assert "rank 1 init_process_group(gloo, world_size=3)" in headline


def test_correct_use_of_every_collective_passes(launch: Launch) -> None:
    result = launch(programs.every_collective, world_size=4)
    assert result.values == [None] * 4
    # the check was not blind: the flight recorder has the collectives
    for rank in result.ranks:
        flight = read_flight(rank.folder / "flight.json")
        assert flight is not None
        pairs = [ranks for (_, ranks), issued in flight.items() if len(ranks) == 2 and issued]
        assert len(pairs) >= 2
        assert len(flight["0", (0, 1, 2, 3)]) > 30


def test_collectives_issued_from_cpp_are_compared(launch: Launch) -> None:
    """DDP broadcasts its parameters from C++, not through a function of Python."""
    result = launch(programs.ddp_of_two_dtypes)
    assert [rank.status for rank in result.ranks] == ["ok", "ok"]
    (text,) = result.mismatches
    assert re.fullmatch(
        r"collective mismatch: collective #(\d+) of the group of ranks \[0, 1\] \(numbered by "
        r"torch\) differs \(dtype\): rank 0 broadcast #\1 of 20 bfloat16; "
        r"rank 1 broadcast #\1 of 20 float16",
        text,
    )


def test_a_rank_that_lags_behind_by_a_gradient_bucket_is_named(failure: Failure) -> None:
    """No ledger has the bucket; the flight record is saved while rank 0 is blocked in C++."""
    lines = failure(programs.ddp_backward_too_many).splitlines()
    assert lines[0] == "rank 1 of 2 raised ValueError: no third batch"
    (found,) = (line for line in lines if line.startswith("group of ranks"))
    bucket = r"all_reduce #(\d+) of 20 float32"
    match = re.fullmatch(
        rf"group of ranks \[0, 1\]: rank 0 waits in {bucket}; rank 1 raised after {bucket}", found
    )
    assert match is not None
    assert int(match[1]) == int(match[2]) + 1


def test_groups_run_with_a_torch_that_has_no_flight_recorder(launch: Launch) -> None:
    result = launch(programs.no_flight_recorder)
    raise_for_failure(result)
    assert not list(result.folder.glob("rank*/flight.json"))
