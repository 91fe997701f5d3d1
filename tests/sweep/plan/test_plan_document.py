"""A plan is validated when it is read, and must match the collected tests."""

import os
from pathlib import Path

import pytest

from pytest_trainsafe.config.values import parse_shard
from pytest_trainsafe.errors import SettingError
from pytest_trainsafe.sweep.plan import document
from pytest_trainsafe.sweep.plan.document import (
    Plan,
    PlannedPoint,
    encode,
    read_plan,
    require_same,
)


def plan(*ids):
    points = [
        PlannedPoint(
            id=each,
            point={"tp": 2, "sp": True, "dtype": "float64"},
            world_size=2,
            reference_world_size=1,
            device="cpu",
            gpus=0,
            seconds=1.5,
        )
        for each in ids
    ]
    return Plan(
        points=points,
        skipped=[],
        other_tests=0,
        max_world_size=2,
        estimated_seconds=1.5,
        unknown=[],
    )


def test_a_plan_is_read_as_it_was_written(tmp_path):
    (tmp_path / "plan.json").write_text(encode(plan("a", "b")))

    assert read_plan("--option", tmp_path / "plan.json") == plan("a", "b")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda text: "",
            "is not a plan: .*; make the plan again with pytest --trainsafe-plan json",
        ),
        (lambda text: "[" * 100_000, "is not a plan: "),
        (lambda text: text.replace("plan 1", "plan 9"), "has the format .*plan 9.*make the plan"),
        (lambda text: text.replace('"b"', '"a"'), "names a point twice"),
        (lambda text: text.replace('"world_size": 2', '"world_size": -2'), "is not a plan: "),
        (lambda text: text.replace("1.5", "1e300"), "is not a plan: "),
        (lambda text: text.replace("1.5", '"fast"'), "is not a plan: "),
    ],
)
def test_a_damaged_plan_is_an_error_that_names_the_option_and_the_file(
    tmp_path, monkeypatch, change, message
):
    monkeypatch.chdir(tmp_path)  # a message shortens a long path
    Path("plan.json").write_text(change(encode(plan("a", "b"))))

    with pytest.raises(SettingError, match=rf"^--option takes a file .* 'plan.json' {message}"):
        read_plan("--option", Path("plan.json"))


def test_a_file_that_cannot_be_read_is_an_error(tmp_path, monkeypatch):
    os.mkfifo(tmp_path / "pipe")
    for path, message in (
        (tmp_path / "missing", "does not exist"),
        (tmp_path / "pipe", "cannot be read"),
        (tmp_path, "cannot be read"),
    ):
        with pytest.raises(SettingError, match=message):
            read_plan("--option", path)
    (tmp_path / "plan.json").write_text(encode(plan("a")))
    monkeypatch.setattr(document, "MAX_BYTES", 10)
    with pytest.raises(SettingError, match=r"cannot be read: it has .* bytes, but the limit is 10"):
        read_plan("--option", tmp_path / "plan.json")


def test_a_plan_must_have_exactly_the_collected_points():
    require_same(plan("a", "b"), "plan.json", ["b", "a"])
    with pytest.raises(SettingError, match=r"1 of its points are not collected(.|\n)*  b"):
        require_same(plan("a", "b"), "plan.json", ["a"])
    with pytest.raises(SettingError, match=r"2 of the collected points are not in it"):
        require_same(plan("a"), "plan.json", ["a", "b", "c"])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0/4", "is '0/4', but 4 shards are numbered from 1 to 4"),
        ("5/4", "is '5/4', but 4 shards are numbered from 1 to 4"),
        ("1/0", "takes 1 to 1000 shards, not '1/0'"),
        ("1/9999", "takes 1 to 1000 shards, not '1/9999'"),
        ("half", "takes the number of a shard and the count of shards, such as 1/4, not 'half'"),
        ("-1/4", "takes the number of a shard"),
        ("١/٤", "takes the number of a shard"),
    ],
)
def test_a_shard_that_does_not_exist_is_an_error(text, message):
    with pytest.raises(SettingError, match=f"^--option {message}"):
        parse_shard("--option", text)


def test_a_shard_has_a_number_and_a_count():
    assert parse_shard("--option", "2/4") == (2, 4)
