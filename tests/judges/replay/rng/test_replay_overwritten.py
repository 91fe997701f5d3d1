"""What `ctx.initialize` hides of a program's own initial values is said, and nothing else is."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_trainsafe.judges.replay.rng.overwritten import overwritten

PROGRAM = "overwrites_its_parameters"


@pytest.mark.parametrize("axis", ["dp", "tp"])
def test_copies_that_ranks_draw_from_other_seeds_are_named(recorded, axis):
    trace = recorded(PROGRAM, "seeded by rank", **{axis: 2})

    [note] = overwritten(trace, recorded(PROGRAM))

    assert f"starts ranks 0, 1 of {axis} with different copies of " in note
    assert "rank 0 draws from torch cpu, seed 5, and rank 1 from torch cpu, seed 6" in note
    assert "rng_programs.py:" in note
    # The parts of tp ranks must differ, so only the copies count there.
    assert ("0.first.weight" in note) == (axis == "dp")
    assert ("copies of 1.weight, 1.bias:" in note) == (axis == "tp")


@pytest.mark.parametrize(
    ("fault", "point"),
    [
        ("", {"dp": 2}),
        ("", {"tp": 2}),
        ("seeded by rank, only parts", {"tp": 2}),
        ("seeded by rank, then broadcast", {"dp": 2}),
        ("seeded by rank, then wrapped", {"dp": 2}),
        ("unwritten memory", {"dp": 2}),
    ],
)
def test_equal_copies_parts_and_memory_that_nothing_has_written_are_not(
    recorded, fault: str, point: dict[str, Any]
):
    alone = recorded(PROGRAM, "only parts" if "only parts" in fault else "")

    assert overwritten(recorded(PROGRAM, fault, **point), alone) == []
