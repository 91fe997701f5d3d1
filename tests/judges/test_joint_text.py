"""The rows of a judge's Finding beside the report of the leading judge."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec import structs

from pytest_trainsafe.core.finding import Finding, Pattern
from pytest_trainsafe.judges.contract import FindingsJudgement
from pytest_trainsafe.judges.joint_text import findings_of

TOLD = "ranks 0, 1 of tp draw different masks"
FOUND = Finding(verdict="fail", judge="replay", check="rng:other", message=f"{TOLD} in step 0")


@pytest.mark.parametrize(("text", "rows"), [(TOLD, 0), ("a mask of rank 1", 1)])
def test_what_a_message_says_is_not_said_again_as_its_pattern(text: str, rows: int) -> None:
    pattern = Pattern("drawn apart", text, cause="seed the ranks alike")
    finding = structs.replace(FOUND, pattern=pattern)
    lines = findings_of(FindingsJudgement("replay", [finding]))

    assert sum(line.split()[0] == "pattern" for line in lines) == rows
    assert sum(line.split()[0] == "so" for line in lines) == 1


def test_a_place_is_said_as_seen_from_the_working_directory() -> None:
    place = Path.cwd() / "model.py"
    finding = structs.replace(FOUND, source=f"{place}:7")
    lines = findings_of(FindingsJudgement("replay", [finding]))

    assert lines[-1].split()[-1] == "model.py:7"
