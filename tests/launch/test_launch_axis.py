"""A hung group names the axis of the call in which ranks wait, and along which they part."""

from __future__ import annotations

from pathlib import Path

import msgspec

from pytest_trainsafe.core.point import Point
from pytest_trainsafe.launch.axis import axis_text
from pytest_trainsafe.launch.collectives.collective import Collective
from pytest_trainsafe.launch.files import RankFiles
from pytest_trainsafe.launch.result import GroupResult, RankResult, Status

POINT = Point.of(tp=2, dp=2)


def group(folder: Path, statuses: list[Status], groups: list[tuple[int, ...]]) -> GroupResult:
    """The result of ranks with these statuses, the last call of each in a group of ranks."""
    ranks = []
    for rank, (status, members) in enumerate(zip(statuses, groups, strict=True)):
        path = RankFiles(folder, rank).ledger
        path.parent.mkdir(parents=True, exist_ok=True)
        call = Collective("g", members, "all_reduce", "train.py:9")
        path.write_bytes(msgspec.json.encode(call) + b"\n")
        ranks.append(RankResult(rank=rank, status=status, folder=path.parent))
    return GroupResult(task="train", folder=folder, ranks=tuple(ranks), seconds=1.0, timeout=9.0)


def test_the_axis_is_that_of_the_waiting_call_and_of_the_ranks_that_part(tmp_path: Path) -> None:
    by_dp: list[tuple[int, ...]] = [(0, 2), (1, 3), (0, 1), (2, 3)]
    result = group(tmp_path, ["hung", "hung", "ok", "ok"], by_dp)
    stood = ["hung train.py:9", "hung train.py:9", "ok", "ok"]

    assert axis_text(result, POINT, stood) == (
        "dp: the last call of ranks 0, 1 is all_reduce over dp; ranks that stand at one place: "
        "0, 1 / 2, 3, so ranks part along dp and agree along tp"
    )


def test_an_exception_says_nothing_of_axes(tmp_path: Path) -> None:
    result = group(tmp_path, ["raised", "stopped", "stopped", "stopped"], [(0, 1, 2, 3)] * 4)
    assert axis_text(result, POINT, ["raised", "at 1", "at 2", "at 2"]) == ""
