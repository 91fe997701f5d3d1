"""The number of shards of a plan, which a CI matrix runs."""

import json

import pytest

from pytest_trainsafe.sweep.plan.__main__ import UNMEASURED, main, shard_count
from pytest_trainsafe.sweep.plan.document import Plan, PlannedPoint, encode


def plan(*seconds):
    points = [
        PlannedPoint(
            id=f"t[{number}]",
            point={"tp": 1},
            world_size=1,
            reference_world_size=1,
            device="cpu",
            gpus=0,
            seconds=each,
        )
        for number, each in enumerate(seconds)
    ]
    known = [each for each in seconds if each is not None]
    return Plan(
        points=points,
        skipped=[],
        other_tests=0,
        max_world_size=1,
        estimated_seconds=sum(known) if known else None,
        unknown=[],
    )


@pytest.mark.parametrize(
    ("seconds", "most", "expected"),
    [
        ((600.0, 600.0, 600.0, 1.0), 16, 4),
        ((600.0, 600.0, 600.0, 1.0), 2, 2),
        ((6000.0, 1.0), 16, 2),
        ((1.0, 1.0), 16, 1),
        ((None,) * 9, 16, UNMEASURED),
        ((), 16, 1),
    ],
)
def test_a_plan_has_as_many_shards_as_its_minutes_need(seconds, most, expected):
    assert shard_count(plan(*seconds), 10, most) == expected


def test_the_shards_are_printed_as_json_and_a_bad_plan_is_an_error(tmp_path, capsys):
    (tmp_path / "plan.json").write_text(encode(plan(900.0, 900.0)))

    assert main([str(tmp_path / "plan.json"), "--minutes", "15"]) == 0
    assert json.loads(capsys.readouterr().out) == [1, 2]

    (tmp_path / "plan.json").write_text("{")
    assert main([str(tmp_path / "plan.json")]) == 2
    assert "is not a plan" in capsys.readouterr().err
