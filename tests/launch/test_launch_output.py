"""The start and the end of a rank's output are read, whatever its length."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import pytest

from pytest_trainsafe.launch.output import read_ends


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "rank0").mkdir()
    return tmp_path / "rank0" / "stdout.txt"


def test_a_short_output_is_whole(path: Path) -> None:
    assert read_ends(path) == ""
    path.write_bytes(b"one\ntwo \xff\n")

    assert read_ends(path) == "one\ntwo \N{REPLACEMENT CHARACTER}\n"


def test_a_long_output_keeps_whole_lines_of_its_ends_and_says_where_the_rest_is(path: Path) -> None:
    path.write_text("".join(f"line {number}\n" for number in range(10)))

    text = read_ends(path, note="this file has them", head=10, tail=15)

    assert text == (
        "line 0\n[... 49 of 70 bytes are left out; this file has them ...]\nline 8\nline 9\n"
    )


def test_a_line_that_is_too_long_is_cut(path: Path) -> None:
    path.write_text("x" * 100)

    text = read_ends(path, head=3, tail=4)

    assert text.splitlines()[0] == "xxx"
    assert text.splitlines()[-1] == "xxxx"
    assert "of 100 bytes are left out" in text.splitlines()[1]


def test_a_text_at_the_end_that_is_told_elsewhere_is_left_out(path: Path) -> None:
    path.write_text("mine\nTraceback\n")

    assert read_ends(path, without="Traceback\n") == "mine\n"
    assert read_ends(path, without="another\n") == "mine\nTraceback\n"
    assert read_ends(path, without="longer than all of it" * 10) == "mine\nTraceback\n"


def test_of_100_mb_no_more_than_the_ends_are_in_memory(path: Path) -> None:
    with path.open("wb") as file:
        file.write(b"start\n")
        file.truncate(100_000_000)
        file.seek(0, 2)
        file.write(b"\nend\n")

    tracemalloc.start()
    try:
        text = read_ends(path)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert text.startswith("start\n")
    assert text.endswith("\nend\n")
    assert "of 100,000,005 bytes are left out" in text
    assert peak < 200_000


def test_a_link_is_not_followed(path: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    path.symlink_to(tmp_path / "secret")

    assert read_ends(path) == (
        "(stdout.txt cannot be read: it is a symbolic link, not a regular file)"
    )


def test_the_warning_of_a_network_without_names_is_left_out(path: Path) -> None:
    warning = (
        "[W1128 15:47:02.123456789 socket.cpp:207] [c10d] The hostname of the client socket cannot "
        "be retrieved. err=-3\n"
    )
    path.write_text(f"one\n{warning}two\n{warning.replace('err=-3', 'err=-2')}")

    assert read_ends(path) == f"one\ntwo\n{warning.replace('err=-3', 'err=-2')}"
