"""A file that a rank damaged or replaced fails the group, names the rank, and never blocks."""

from __future__ import annotations

import os
import signal
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pytest_trainsafe.launch import GroupFailure, Task, WarmLauncher, data, raise_for_failure
from pytest_trainsafe.launch import files as files_module
from pytest_trainsafe.launch.collectives.collective import Collective, LedgerError, read_ledger
from pytest_trainsafe.launch.collectives.flight import read_flight
from pytest_trainsafe.launch.data import MalformedDataError
from pytest_trainsafe.launch.files import Outcome, RankFiles, read_end
from tests.support.launch import hostile_programs

pytestmark = pytest.mark.usefixtures("never_hangs")

OK = Outcome(rank=0, status="ok", at=1.0, value=data.encode({"loss": torch.ones(3)}))


@pytest.fixture
def files(tmp_path: Path) -> RankFiles:
    made = RankFiles(tmp_path, 0)
    made.folder.mkdir()
    return made


KINDS: dict[str, Callable[[Path], None]] = {
    "a pipe": os.mkfifo,
    "a folder": Path.mkdir,
    "a symbolic link": lambda path: path.symlink_to("/dev/zero"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_of_a_rank_that_is_no_regular_file_is_an_error_of_the_rank(
    files: RankFiles, kind: str
) -> None:
    for path in (files.result, files.ledger, files.flight, files.started, files.imported):
        KINDS[kind](path)
    KINDS[kind](files.stdout)

    outcome = files.read_outcome()
    assert outcome is not None
    assert (outcome.rank, outcome.status) == (0, "raised")
    assert f"{files.result} cannot be read: it is {kind}, not a regular file" in outcome.error
    with pytest.raises(LedgerError, match=f"it is {kind}, not a regular file"):
        read_ledger(files.ledger)
    assert read_flight(files.flight) is None
    assert files.read_pid() is None
    assert files.read_imported() == []
    assert (
        read_end(files.stdout) == f"(stdout.txt cannot be read: it is {kind}, not a regular file)"
    )


def test_a_rank_folder_that_is_a_symbolic_link_is_not_read(
    files: RankFiles, tmp_path: Path
) -> None:
    files.write_outcome(OK)
    files.folder.rename(tmp_path / "elsewhere")
    files.folder.symlink_to(tmp_path / "elsewhere")
    outcome = files.read_outcome()
    assert outcome is not None
    assert "rank0 is a symbolic link, not a folder" in outcome.error


OUTCOMES = {
    "deep": b"\x91" * 100_000,
    "empty": b"",
    "text": b"\xa3abc",
    "another rank's": msgspec.msgpack.encode(msgspec.structs.replace(OK, rank=1)),
    "at no time": msgspec.msgpack.encode(msgspec.structs.replace(OK, at=float("nan"))),
    "an unknown status": msgspec.msgpack.encode({"rank": 0, "status": "fine", "at": 1.0}),
    "cut": msgspec.msgpack.encode(OK)[:-1],
    "not UTF-8": msgspec.msgpack.encode({"rank": 0, "status": "ok", "at": 1.0}).replace(
        b"ok", b"\xff\xff"
    ),
}


@pytest.mark.parametrize("what", OUTCOMES)
def test_a_malformed_outcome_is_an_error_of_the_rank(files: RankFiles, what: str) -> None:
    files.result.write_bytes(OUTCOMES[what])
    outcome = files.read_outcome()
    assert outcome is not None
    assert (outcome.rank, outcome.status, outcome.value) == (0, "raised", b"")
    assert "result.msgpack cannot be read" in outcome.error


def test_an_outcome_that_is_too_large_is_not_read(files: RankFiles) -> None:
    files.result.touch()
    os.truncate(files.result, files_module.MAX_RESULT + 1)
    outcome = files.read_outcome()
    assert outcome is not None
    assert "the limit is 1073741824" in outcome.error


def test_a_value_above_the_size_limit_is_an_error_of_the_rank_that_writes_it(
    files: RankFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files_module, "MAX_RESULT", 300)
    files.write_outcome(msgspec.structs.replace(OK, value=b"x" * 300))
    outcome = files.read_outcome()
    assert outcome is not None
    assert outcome.status == "raised"
    assert "the limit is 300; write the value to a file" in outcome.error


@pytest.mark.parametrize("text", [b"", b"-5", b"0", b"x", b"9" * 5000, b"\xff", b"12 "])
def test_a_malformed_process_id_is_read_as_none(files: RankFiles, text: bytes) -> None:
    files.started.write_bytes(text)
    assert files.read_pid() is None


def test_an_incomplete_last_ledger_line_is_ignored_and_a_damaged_line_is_refused(
    files: RankFiles,
) -> None:
    call = Collective(group="g", ranks=(0, 1), op="barrier", site="a.py:1")
    line = msgspec.json.encode(call)
    files.ledger.write_bytes(line + b"\n" + line[:-5])
    assert read_ledger(files.ledger) == ([call], False)
    for bad in (b"[" * 100_000, b"\xff", b"{}", b""):
        files.ledger.write_bytes(line + b"\n" + bad + b"\n")
        with pytest.raises(LedgerError, match="line 2 is damaged"):
            read_ledger(files.ledger)


def ext(code: int, content: bytes) -> bytes:
    return msgspec.msgpack.encode(msgspec.msgpack.Ext(code, content))


def nested(depth: int) -> bytes:
    made = b"\x90"
    for _ in range(depth):
        made = ext(3, b"\x91" + made)
    return made


VALUES = {
    "unknown": ext(77, b""),
    "a tensor that is text": ext(1, b"abc"),
    "a tensor without one": ext(1, struct.pack("<Q", 2) + b"{}"),
    "a tensor with a huge header": ext(1, struct.pack("<Q", 2**63) + b"{}"),
    "a number of text": ext(4, b"x"),
    "a number of 10 000 digits": ext(4, b"9" * 10_000),
    "pairs that are none": ext(6, msgspec.msgpack.encode([1, 2])),
    "keys without a hash": ext(6, msgspec.msgpack.encode([([], 1)])),
    "deep tuples": nested(2000),
    "cut": data.encode([1, 2, 3])[:-1],
}


@pytest.mark.parametrize("what", VALUES)
def test_malformed_values_raise_malformed_data_error(what: str) -> None:
    with pytest.raises(MalformedDataError):
        data.decode(VALUES[what])


WHOLE = data.encode({"a": (1, 2**70, [torch.arange(4.0)]), "b": b"x" * 9, (1, 2): None})


@given(st.data())
def test_a_damaged_value_is_decoded_or_raises_malformed_data_error(draws: st.DataObject) -> None:
    signal.alarm(120)
    start = draws.draw(st.integers(0, len(WHOLE)))
    end = draws.draw(st.integers(start, min(len(WHOLE), start + 4)))
    damaged = WHOLE[:start] + draws.draw(st.binary(max_size=6)) + WHOLE[end:]
    try:
        data.decode(damaged)
    except MalformedDataError as error:
        assert str(error)  # noqa: PT017


@given(st.data())
def test_a_damaged_outcome_is_read_or_is_an_error_of_the_rank(
    tmp_path_factory: pytest.TempPathFactory, draws: st.DataObject
) -> None:
    signal.alarm(120)
    whole = msgspec.msgpack.encode(OK)
    start = draws.draw(st.integers(0, len(whole)))
    end = draws.draw(st.integers(start, len(whole)))
    files = RankFiles(tmp_path_factory.getbasetemp(), 0)
    files.folder.mkdir(exist_ok=True)
    files.result.write_bytes(whole[:start] + draws.draw(st.binary(max_size=6)) + whole[end:])
    outcome = files.read_outcome()
    assert outcome is not None
    assert outcome.rank == 0
    assert outcome.status == "ok" or outcome.error


@pytest.mark.parametrize(
    ("program", "args"),
    [
        (hostile_programs.replace, ("ledger.jsonl", "pipe")),
        (hostile_programs.replace, ("ledger.jsonl", "link")),
        (hostile_programs.replace, ("ledger.jsonl", "garbage")),
        (hostile_programs.replace_the_outcome, ("pipe",)),
        (hostile_programs.replace_the_outcome, ("link",)),
        (hostile_programs.replace_the_outcome, ("garbage",)),
    ],
)
def test_a_rank_that_replaces_its_files_is_named_in_the_failure(
    warm: WarmLauncher, tmp_path: Path, program: Any, args: tuple[str, ...]
) -> None:
    task = Task.of(program, *args, world_size=2)
    result = warm.run(task, timeout=30, workdir=tmp_path)
    with pytest.raises(GroupFailure) as caught:
        raise_for_failure(result)
    message = str(caught.value)
    assert message.startswith("rank 1 of 2 raised UnreadableFile")
    assert "cannot be read" in message
    assert "rank 0 had finished" in message


def test_a_ledger_replaced_by_a_pipe_does_not_block_beyond_the_timeout(
    warm: WarmLauncher, tmp_path: Path
) -> None:
    task = Task.of(hostile_programs.replace_and_sit, "ledger.jsonl", "pipe", world_size=2)
    result = warm.run(task, timeout=2, workdir=tmp_path)
    with pytest.raises(
        GroupFailure, match="the record of rank 1's collectives cannot be read: it is a pipe"
    ):
        raise_for_failure(result)
    assert [rank.status for rank in result.ranks] == ["hung", "hung"]


def test_standard_output_replaced_by_a_pipe_is_reported_as_a_pipe(
    warm: WarmLauncher, tmp_path: Path
) -> None:
    task = Task.of(hostile_programs.replace, "stdout.txt", "pipe", world_size=2)
    result = warm.run(task, timeout=30, workdir=tmp_path)
    assert result.values == ["done", "done"]
    assert "it is a pipe" in result.ranks[1].stdout
