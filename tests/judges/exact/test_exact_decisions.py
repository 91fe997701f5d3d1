"""The file with a rank's decisions: written, read back, and refused where it is damaged."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import torch

from pytest_trainsafe.arithmetic import Decisions, Doubles, Residues, UndecidedError
from pytest_trainsafe.errors import TraceError
from pytest_trainsafe.judges.exact.events import DecisionsFile, decisions


def trace(folder: Path, noted: DecisionsFile | None) -> Any:
    """A trace whose only rank notes this file."""
    rank = SimpleNamespace(events_of=lambda kind: [] if noted is None else [noted])
    return SimpleNamespace(path=folder, ranks=[rank])


def recorded() -> Decisions:
    numbers = Doubles()
    x = torch.tensor([[1.0, -2.0], [0.5, 3.0]], dtype=torch.float64)
    numbers.positive(x)
    numbers.places(x, 1)
    numbers.decide("item", torch.Tensor.item, x[0, 1])
    numbers.decide("equal", torch.equal, x, x)
    return numbers.decisions


def test_what_a_rank_decided_is_taken_at_the_same_places(tmp_path: Path) -> None:
    noted = decisions.write(tmp_path / "rank0", recorded())

    found = decisions.read(trace(tmp_path, noted), 0)

    residues = Residues(3, found.replay())
    x = residues.enter(torch.tensor([[1.0, -2.0], [0.5, 3.0]], dtype=torch.float64))
    assert residues.positive(x).tolist() == [[True, False], [True, True]]
    assert residues.places(x, 1).tolist() == [[0], [1]]
    assert residues.decide("item", torch.Tensor.item, x[0, 1]) == -2.0
    assert residues.decide("equal", torch.equal, x, x) is True


def test_an_exact_run_that_decides_less_often_is_refused() -> None:
    replay = recorded().replay()
    residues = Residues(3, replay)
    x = residues.enter(torch.tensor([[1.0, -2.0], [0.5, 3.0]], dtype=torch.float64))
    residues.positive(x)
    residues.places(x, 1)
    with pytest.raises(UndecidedError, match=r"took 2 decisions of the 4 .* next one is item"):
        replay.finish()
    residues.decide("item", torch.Tensor.item, x[0, 1])
    residues.decide("equal", torch.equal, x, x)
    replay.finish()


@pytest.mark.parametrize("content", [b"", b"\x90", b"\xc1", b"\x91" * 100_000])
def test_a_changed_file_is_refused(tmp_path: Path, content: bytes) -> None:
    noted = decisions.write(tmp_path / "rank0", recorded())
    (tmp_path / "rank0" / decisions.FILE).write_bytes(content)

    with pytest.raises(TraceError, match="damaged"):
        decisions.read(trace(tmp_path, noted), 0)


@pytest.mark.parametrize(
    "taken",
    [
        ["_Tensor", "object", [1], b"12345678"],
        ["_Tensor", "int64", [2**40], b"12345678"],
        ["_Tensor", "int64", [1], b"123"],
        ["_Tensor", "bool", [-1], b"1"],
        "text",
    ],
)
def test_an_impossible_decision_is_refused(tmp_path: Path, taken: object) -> None:
    import xxhash

    content = msgspec.msgpack.encode([["gt", [[1]], taken]])
    (tmp_path / "rank0").mkdir()
    (tmp_path / "rank0" / decisions.FILE).write_bytes(content)
    noted = DecisionsFile(len(content), xxhash.xxh3_128_hexdigest(content))

    with pytest.raises(TraceError, match=r"impossible decision gt|cannot be read"):
        decisions.read(trace(tmp_path, noted), 0)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    noted = decisions.write(tmp_path / "rank0", recorded())
    (tmp_path / "rank0" / decisions.FILE).unlink()

    with pytest.raises(TraceError, match="cannot be read"):
        decisions.read(trace(tmp_path, noted), 0)
    with pytest.raises(TraceError, match="has no decisions of rank 0"):
        decisions.read(trace(tmp_path, None), 0)
