"""Seconds of earlier runs: kept in one bounded file, which may be damaged or hostile."""

import json
import os

import pytest

from pytest_trainsafe.sweep.plan import seconds
from pytest_trainsafe.sweep.plan.seconds import NAME, read_seconds, update_seconds


def test_written_seconds_are_read_and_a_newer_measurement_replaces_the_older(tmp_path):
    update_seconds(tmp_path, {"a": 1.0, "b": 2.0})
    update_seconds(tmp_path, {"a": 3.0})

    assert read_seconds(tmp_path) == {"b": 2.0, "a": 3.0}
    assert [path.name for path in tmp_path.iterdir()] == [NAME]


def test_above_the_limit_the_tests_that_ran_longest_ago_are_dropped(tmp_path, monkeypatch):
    monkeypatch.setattr(seconds, "MAX_TESTS", 2)
    update_seconds(tmp_path, {"a": 1.0, "b": 1.0})
    update_seconds(tmp_path, {"a": 1.0})
    update_seconds(tmp_path, {"c": 1.0})

    assert set(read_seconds(tmp_path)) == {"a", "c"}


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"format": "another", "tests": {"a": 1.0}}',
        b'{"format": "pytest-trainsafe seconds 1", "tests": {"a": "1"}}',
        b'{"format": "pytest-trainsafe seconds 1", "tests": {"a": 1.0}, "more": 1}',
    ],
)
def test_a_damaged_file_is_read_as_empty_and_replaced_by_the_next_run(tmp_path, content):
    (tmp_path / NAME).write_bytes(content)

    assert read_seconds(tmp_path) == {}
    update_seconds(tmp_path, {"a": 1.0})
    assert read_seconds(tmp_path) == {"a": 1.0}


def test_invalid_seconds_are_left_out(tmp_path):
    tests = {"a": 1.0, "b": -1.0, "c": 1e300, "d" * 5000: 1.0}
    (tmp_path / NAME).write_text(json.dumps({"format": seconds.FORMAT, "tests": tests}))

    assert read_seconds(tmp_path) == {"a": 1.0}
    update_seconds(tmp_path, {"e": float("nan"), "f": float("inf")})
    assert read_seconds(tmp_path) == {"a": 1.0}


def test_a_link_a_pipe_and_a_large_file_are_not_read(tmp_path, monkeypatch):
    update_seconds(tmp_path, {"a": 1.0})
    (tmp_path / NAME).rename(tmp_path / "elsewhere")
    (tmp_path / NAME).symlink_to(tmp_path / "elsewhere")
    assert read_seconds(tmp_path) == {}

    (tmp_path / NAME).unlink()
    os.mkfifo(tmp_path / NAME)
    assert read_seconds(tmp_path) == {}

    (tmp_path / NAME).unlink()
    (tmp_path / "elsewhere").rename(tmp_path / NAME)
    monkeypatch.setattr(seconds, "MAX_BYTES", 10)
    assert read_seconds(tmp_path) == {}


def test_a_folder_that_cannot_be_written_is_no_error(tmp_path):
    update_seconds(tmp_path / "missing", {"a": 1.0})
