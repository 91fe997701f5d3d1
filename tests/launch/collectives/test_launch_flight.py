"""Flight records of two ranks show mismatches and lagging ranks; what they lack is no mismatch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from pytest_trainsafe.launch import Task
from pytest_trainsafe.launch.collectives.flight import Flight, GroupKey, Issued, read_flight
from pytest_trainsafe.launch.collectives.flight_check import check_flights, missed, waiting
from pytest_trainsafe.launch.torchrun.launcher import environment

DONE, STOPPED = [True, True], [False, False]
RUN = ["", ""]
WORLD: GroupKey = ("0", (0, 1))


def issued(number: int, op: str = "all_reduce", *sizes: tuple[int, ...], **fields: Any) -> Issued:
    """An entry of the recorder: by default a completed collective of 4 float32 elements."""
    values: dict[str, Any] = {
        "record_id": number - 1,
        "pg_id": 0,
        "process_group": ("0", "default_pg"),
        "input_sizes": sizes or ((4,),),
        "output_sizes": sizes or ((4,),),
        "input_dtypes": ("Float",),
        "output_dtypes": ("Float",),
        "retired": True,
    }
    values |= {"collective_seq_id": number, "profiling_name": f"gloo:{op}"}
    return Issued(**(values | fields))


def half(**fields: Any) -> dict[str, Any]:
    """The fields of a bfloat16 entry."""
    return {"input_dtypes": ("BFloat16",), "output_dtypes": ("BFloat16",), **fields}


DISAGREE: list[tuple[str, Issued, Issued, str]] = [
    ("op", issued(2), issued(2, "broadcast"), "(operation)"),
    ("dtype", issued(2), issued(2, **half()), "(dtype)"),
    ("dtype of parts", issued(2, "all_to_all"), issued(2, "all_to_all", **half()), "(dtype)"),
    ("numel", issued(2), issued(2, "all_reduce", (5,)), "(number of elements)"),
]


@pytest.mark.parametrize(
    ("a", "b", "why"), [row[1:] for row in DISAGREE], ids=[row[0] for row in DISAGREE]
)
def test_a_mismatch_between_flight_records_names_what_differs(
    a: Issued, b: Issued, why: str
) -> None:
    flights = [{WORLD: [issued(1), a]}, {WORLD: [issued(1), b]}]
    (text,) = check_flights(flights, STOPPED)
    head = "collective mismatch: collective #2 of the group of ranks [0, 1] (numbered by torch)"
    assert text == f"{head} differs {why}: rank 0 {a}; rank 1 {b}"
    assert check_flights(flights, STOPPED, reported=[WORLD]) == []


def test_a_collective_is_described_by_its_number_shapes_and_dtype() -> None:
    assert str(issued(7, "all_reduce", (64, 64))) == "all_reduce #7 of 64x64 float32"
    assert str(issued(7, "all_reduce", (2,), ())) == "all_reduce #7 of 2 and one float32"
    assert str(issued(7, "broadcast", **half())) == "broadcast #7 of 4 bfloat16"
    nothing = {"input_sizes": (), "output_sizes": (), "input_dtypes": (), "output_dtypes": ()}
    assert str(issued(7, "barrier", **nothing)) == "barrier #7"


AGREE: list[tuple[str, Issued, Issued]] = [
    ("shape", issued(1, "all_reduce", (2, 2)), issued(1, "all_reduce", (4,))),
    ("coalesced", issued(1, "all_reduce", (3,), (1,)), issued(1, "all_reduce", (1,), (3,))),
    ("uneven parts", issued(1, "all_to_all", (3,)), issued(1, "all_to_all", (5,))),
    (
        "root of a scatter",
        issued(1, "scatter", input_sizes=((2, 4),)),
        issued(1, "scatter", input_sizes=(), input_dtypes=()),
    ),
    (
        "root of a gather",
        issued(1, "gather", output_sizes=((2, 4),)),
        issued(1, "gather", output_sizes=(), output_dtypes=()),
    ),
    ("unfinished", issued(1), issued(1, retired=False)),
]


@pytest.mark.parametrize(("a", "b"), [row[1:] for row in AGREE], ids=[row[0] for row in AGREE])
def test_allowed_differences_between_flight_records_are_no_mismatch(a: Issued, b: Issued) -> None:
    assert check_flights([{WORLD: [a]}, {WORLD: [b]}], DONE) == []


def test_a_collective_that_a_finished_rank_did_not_issue_is_a_mismatch() -> None:
    flights = [{WORLD: [issued(1), issued(2)]}, {WORLD: [issued(1)]}]
    (text,) = check_flights(flights, [False, True])
    assert "#2 of the group of ranks [0, 1] (numbered by torch) is made by rank 0 but" in text
    assert "not by rank 1, which finished after #1: rank 0 all_reduce #2 of 4 float32" in text
    assert check_flights(flights, [True, False]) == []


def test_collectives_missing_in_the_middle_of_a_record_are_no_mismatch() -> None:
    """They were overwritten, or are of a kind that is not recorded."""
    flights = [{WORLD: [issued(1), issued(3)]}, {WORLD: [issued(2, "barrier"), issued(3)]}]
    assert check_flights(flights, DONE) == []


def test_a_rank_without_a_flight_record_is_no_mismatch() -> None:
    assert check_flights([{WORLD: [issued(1)]}, None], DONE) == []
    assert check_flights([{WORLD: [issued(1)]}, {}], DONE) == []


def test_a_group_with_nonexistent_ranks_is_not_checked() -> None:
    larger: GroupKey = ("0", (0, 1, 2))
    flight = {larger: [issued(1, retired=False)]}
    assert check_flights([flight, {larger: []}], DONE) == []
    assert waiting([flight, flight], RUN) == []


STATES: list[tuple[Flight | None, str]] = [
    ({WORLD: [issued(6)]}, "rank 1 lags after all_reduce #6 of 4 float32"),
    ({WORLD: []}, "rank 1 lags with none issued"),
    ({WORLD: [issued(7)]}, "rank 1 passed all_reduce #7 of 4 float32"),
    (None, "rank 1 left no record"),
    ({}, "rank 1 has no record of it"),
]


@pytest.mark.parametrize(("other", "state"), STATES)
def test_a_waiting_rank_is_reported_with_the_state_of_the_other_rank(
    other: Flight | None, state: str
) -> None:
    waits = {WORLD: [issued(6), issued(7, retired=False), issued(8, retired=False)]}
    first = "group of ranks [0, 1]: rank 0 waits in all_reduce #7 of 4 float32; "
    assert waiting([waits, other], RUN) == [first + state]
    assert missed([waits, other], RUN) == ["", "all_reduce #7" if " lags " in state else ""]


def test_ranks_that_wait_in_the_same_collective_are_listed_together() -> None:
    group: GroupKey = ("3", (4, 5, 6))
    waits, ahead = {group: [issued(1, retired=False)]}, {group: [issued(1)]}
    flights: list[Flight | None] = [None, None, None, None, waits, ahead, waits]
    assert waiting(flights, [*[""] * 5, "finished", ""]) == [
        (
            "group of ranks [4, 5, 6]: ranks 4, 6 wait in all_reduce #1 of 4 float32; "
            "rank 5 finished after all_reduce #1 of 4 float32"
        )
    ]


def test_a_rank_that_ended_is_not_reported_as_waiting() -> None:
    """A collective that completes just before the program ends may not be marked as retired."""
    flights = [{WORLD: [issued(1, retired=False)]}, {WORLD: [issued(1), issued(2, retired=False)]}]
    assert waiting(flights, ["raised", "finished"]) == []
    assert waiting(flights, ["raised", ""]) == [
        (
            "group of ranks [0, 1]: rank 0 raised after all_reduce #1 of 4 float32; "
            "rank 1 waits in all_reduce #2 of 4 float32"
        )
    ]


def test_nothing_is_reported_if_no_rank_waits() -> None:
    assert waiting([{WORLD: [issued(1), issued(2)]}, {WORLD: [issued(1)]}], RUN) == []


def saved(path: Path, groups: dict[str, Any], *entries: Issued) -> Path:
    """A flight record as a rank saves it."""
    content = {"groups": groups, "recorder": {"version": "2.10", "entries": entries}}
    path.write_bytes(msgspec.json.encode(content))
    return path


def test_the_entries_of_a_record_are_read_per_group_in_order(tmp_path: Path) -> None:
    one, two = issued(1), issued(2)
    other = issued(1, process_group=("1", "undefined"), pg_id=1)
    groups = {"0": [0, 1], "1": [1, 0], "2": [1]}
    read = read_flight(saved(tmp_path / "flight.json", groups, one, other, two))
    assert read == {WORLD: [one, two], ("1", (1, 0)): [other], ("2", (1,)): []}


UNRELIABLE: list[tuple[str, Any, list[Issued]]] = [
    ("a name that two groups bore", None, [issued(1)]),
    ("two groups of one name", [0, 1], [issued(1), issued(2, pg_id=3)]),
    ("a number twice", [0, 1], [issued(1), issued(1)]),
    ("another backend", [0, 1], [issued(1, profiling_name="nccl:all_reduce")]),
    ("all overwritten", [0, 1], [issued(9, process_group=("5", ""))]),
]


@pytest.mark.parametrize(
    ("ranks", "entries"), [row[1:] for row in UNRELIABLE], ids=[row[0] for row in UNRELIABLE]
)
def test_a_group_whose_entries_are_unreliable_is_left_out(
    ranks: Any, entries: list[Issued], tmp_path: Path
) -> None:
    assert read_flight(saved(tmp_path / "flight.json", {"0": ranks}, *entries)) == {}


@pytest.mark.parametrize("content", [b"", b"{}", b'{"groups": {}, "recorder": {"entries": [1]}}'])
def test_a_record_in_an_unknown_format_is_ignored(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "flight.json"
    assert read_flight(path) is None
    path.write_bytes(content)
    assert read_flight(path) is None


def test_a_record_without_entries_has_groups_without_collectives(tmp_path: Path) -> None:
    """If there are none, torch leaves out the key `entries`."""
    path = tmp_path / "flight.json"
    path.write_bytes(b'{"groups": {"0": [0, 1]}, "recorder": {"version": "2.10"}}')
    assert read_flight(path) == {WORLD: []}


def test_the_flight_recorder_is_enabled_unless_the_user_set_its_buffer_size() -> None:
    """Some releases of torch record nothing by default."""
    plain = Task.of("sys:getrecursionlimit", world_size=1)
    assert int(environment(plain, {})["TORCH_FR_BUFFER_SIZE"]) > 0
    for name in ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE"):
        chosen = Task.of("sys:getrecursionlimit", world_size=1, env={name: "0"})
        for found in (environment(plain, {name: "0"}), environment(chosen, {})):
            sizes = {key: value for key, value in found.items() if key.endswith("BUFFER_SIZE")}
            assert sizes == {name: "0"}
