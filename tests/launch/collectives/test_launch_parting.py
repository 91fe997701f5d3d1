"""A rank that leaves out a collective is reported at its line, not where the calls run out."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pytest_trainsafe.launch.collectives.collective import Collective
from pytest_trainsafe.launch.collectives.ledger_check import check_ledgers
from pytest_trainsafe.launch.collectives.parting import Parting, parting
from tests.support.launch import programs
from tests.support.launch.programs import Launch

PARTINGS: list[tuple[str, str, str, Parting | None]] = [
    ("one left out", "fbfbb", "fbfbfb", Parting(4, False)),
    ("the first rank makes it", "fbfbfb", "fbbfb", Parting(2, True)),
    ("one of a run of the same line", "fffbbfffbb", "fffbbffffbb", Parting(8, False)),
    ("left out in each step", "xyzacxyzacxyzac", "xyzabcxyzabcxyza", Parting(4, False)),
    ("after branches by rank", "0xy0xy0y0xy", "1xy1xy1xy1xy", Parting(7, False)),
    ("no call later is the same", "xyxyp", "xyxyqr", Parting(4, True)),
    ("the last call of all", "xyxy", "xyxyx", None),
    ("branches by rank", "0xy0xy0xy", "1xy1xy1xy1", None),
    ("branches of two lines in another order", "xabcyxabcy", "xcabyxcabyx", None),
    ("never the same", "0000", "11111", None),
]


@pytest.mark.parametrize(
    ("a", "b", "expected"), [row[1:] for row in PARTINGS], ids=[row[0] for row in PARTINGS]
)
def test_ranks_part_where_they_are_never_in_step_again(
    a: str, b: str, expected: Parting | None
) -> None:
    assert parting(a, b) == expected
    flipped = None if expected is None else expected.at
    found = parting(b, a)
    assert (None if found is None else found.at) == flipped


def calls(lines: str) -> list[Collective]:
    group = ("0", (0, 1))
    return [Collective(*group, op="barrier", site=f"a.py:{line}") for line in lines]


def test_a_mismatch_is_reported_where_the_ranks_part() -> None:
    ((text, at, _),) = check_ledgers([calls("1212229"), calls("12112229")], [True, False])
    parted = "the ranks part at collective 4, where they first call from different lines"
    assert f"mismatch: {parted}: rank 0 barrier at a.py:2, rank 1 barrier at a.py:1; coll" in text
    assert at == "a.py:1"


def test_calls_whose_lines_are_not_known_are_reported_as_before() -> None:
    one = [Collective(group="0", ranks=(0, 1), op="barrier", site=site) for site in ("a", "")]
    two = [Collective(group="0", ranks=(0, 1), op="barrier", site=site) for site in ("a", "b", "")]
    ((text, at, _),) = check_ledgers([one, two], [True, False])
    assert "part at" not in text
    assert at == ""


def test_a_collective_left_out_amid_others_of_its_shape_is_named(launch: Launch) -> None:
    result = launch(programs.skips_one_of_equal_shapes, timeout=60)
    lines = Path(programs.__file__).read_text(encoding="utf-8").splitlines()
    found = re.search(
        r"the ranks part at collective 5, where they call from different lines and stay out of "
        r"step: rank 0 all_reduce at \S+:(\d+), rank 1 all_reduce at \S+:(\d+); collective 9",
        result.mismatches[0],
    )
    assert found is not None, result.mismatches
    assert lines[int(found[1]) - 1].endswith("# backward")
    assert lines[int(found[2]) - 1].endswith("# forward")
    assert result.mismatch_at.endswith(f":{found[2]}")
