"""With `-s`, what ranks print is shown while they run: line by line, with the rank."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pytest_trainsafe.launch.console.console import Console, current
from pytest_trainsafe.launch.console.relay import Relay
from pytest_trainsafe.launch.files import RankFiles
from tests.support.launch import in_terminal

PROGRAM = """
import os
import sys


def talk(pipe):
    rank = os.environ["RANK"]
    print("hello from", rank)
    print("a \\x1b[31mred line", file=sys.stderr)
    sys.stdout.write("unfinished")
    with open(f"{pipe}{rank}") as gate:
        gate.read()
"""

TEST = """
from program import talk


def test_talk(torchrun_group):
    torchrun_group.run(talk, {pipe!r}, world_size=2)
"""


@pytest.fixture
def console(tmp_path: Path) -> Iterator[tuple[Console, Path]]:
    path = tmp_path / "terminal"
    out = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    opened = Console(out, os.dup(out), column=lambda: 5)
    yield opened, path
    opened.close()


def ranks_in(tmp_path: Path, count: int) -> list[RankFiles]:
    files = [RankFiles(tmp_path / "group", rank) for rank in range(count)]
    for each in files:
        each.folder.mkdir(parents=True)
    return files


def test_lines_have_the_rank_and_are_whole(tmp_path: Path, console: tuple[Console, Path]) -> None:
    opened, path = console
    files = ranks_in(tmp_path, 2)
    relay = Relay(opened, files)
    for piece in ("o", "ne\ntw", "o \x1b[1m\n", "rest"):
        with files[1].stdout.open("a") as file:
            file.write(piece)
        relay.copy()
    with files[0].stderr.open("ab") as raw:
        raw.write(b"\xff\n\n")
    relay.stop()

    # below the unfinished line of pytest
    assert path.read_text().splitlines() == [
        "",
        "[rank 1] one",
        "[rank 1] two \\x1b[1m",
        "[rank 0] \N{REPLACEMENT CHARACTER}",
        "[rank 0] ",
        "[rank 1] rest",
    ]


def test_a_label_is_after_the_rank_and_long_lines_are_split(
    tmp_path: Path, console: tuple[Console, Path]
) -> None:
    opened, path = console
    (files,) = ranks_in(tmp_path, 1)
    files.stdout.write_text("x" * 200_000 + "\nend\n")
    Relay(opened, [files], "reference, float32").stop()

    lines = path.read_text().splitlines()
    assert all(line.startswith("[rank 0, reference, float32] ") for line in lines[1:])
    assert sum(line.count("x") for line in lines) == 200_000
    assert lines[-1] == "[rank 0, reference, float32] end"


def test_a_console_is_the_current_one_until_it_is_closed(console: tuple[Console, Path]) -> None:
    opened, path = console
    assert current() is opened
    inner = Console(os.open(path, os.O_WRONLY), os.open(path, os.O_WRONLY))
    assert current() is inner
    inner.close()
    assert current() is opened


@pytest.mark.usefixtures("shared_fork_server")
@pytest.mark.parametrize("launcher", ["warm", pytest.param("torchrun", marks=pytest.mark.slow)])
def test_output_is_shown_while_the_ranks_run(tmp_path: Path, launcher: str) -> None:
    for rank in range(2):
        os.mkfifo(tmp_path / f"pipe{rank}")
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "test_it.py").write_text(TEST.format(pipe=str(tmp_path / "pipe")))
    (tmp_path / "pytest.ini").write_text("[pytest]\npythonpath = .\n")
    command = [sys.executable, "-m", "pytest", "-s", f"--trainsafe-launcher={launcher}"]
    with in_terminal.Terminal(command, tmp_path) as terminal:
        for rank in range(2):
            terminal.expect_all(f"\n[rank {rank}] hello from {rank}\r\n")
            terminal.expect_all(f"\n[rank {rank}] a \\x1b[31mred line\r\n")
        assert "unfinished" not in terminal.shown
        for rank in range(2):
            os.close(os.open(tmp_path / f"pipe{rank}", os.O_WRONLY))
        terminal.expect("1 passed")

        assert terminal.wait() == 0
        assert "\n[rank 1] unfinished\r\n" in terminal.shown
