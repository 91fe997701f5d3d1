"""A damaged trace is refused with an error that names the file and the damage."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from pytest_trainsafe.core.tensor_id import TensorId
from pytest_trainsafe.trace.reader import Trace, TraceError
from pytest_trainsafe.trace.run_spec import RunSpec
from pytest_trainsafe.trace.schema import NoteEvent
from pytest_trainsafe.trace.writer import RankWriter, manifest_of, write_manifest
from tests.support.trace.forged_traces import with_changes

EVENTS = "rank1/events.jsonl"
WEIGHT = TensorId(0, None, "param", "layer", "weight")


@pytest.fixture
def whole(tmp_path: Path) -> Path:
    """A complete trace of two ranks: a note, then a tensor."""
    path = tmp_path / "trace"
    write_manifest(
        path,
        manifest_of(RunSpec(program="p", axes=(("tp", 2),), dtype="float32"), "cpu"),
    )
    for rank in range(2):
        writer = RankWriter(path, rank)
        writer.add(NoteEvent("ran", str(rank)))
        writer.add_tensor(WEIGHT, torch.arange(8.0) + rank)
        writer.close()
    return path


def cut(path: Path, keep: int) -> None:
    path.write_bytes(path.read_bytes()[:keep])


def drop_last_line(path: Path) -> None:
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:-1]))


def drop_first_line(path: Path) -> None:
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[1:]))


def spoil_first_line(path: Path) -> None:
    path.write_bytes(b'{"type": "nonsense"}\n' + path.read_bytes())


def exchange(path: Path, old: bytes, new: bytes) -> None:
    head, found, rest = path.read_bytes().rpartition(old)
    assert found
    path.write_bytes(head + new + rest)


DAMAGE: dict[str, tuple[Callable[[Path], None], str, str]] = {
    "last line cut": (lambda p: cut(p / EVENTS, -5), "events.jsonl", "middle of line 3"),
    "no end": (lambda p: drop_last_line(p / EVENTS), "events.jsonl", "did not finish"),
    "lost line": (lambda p: drop_first_line(p / EVENTS), "line 1", "lines were lost"),
    "bad line": (lambda p: spoil_first_line(p / EVENTS), "line 1", "nonsense"),
    "changed line": (
        lambda p: exchange(p / EVENTS, b'"value":"1"', b'"value":"2"'), EVENTS, "recorded hash"
    ),
    "changed end": (
        lambda p: exchange(p / EVENTS, b'"hash":"', b'"hash":"0'), EVENTS, "recorded hash"
    ),
    "no rank": (lambda p: shutil.rmtree(p / "rank1"), "rank1", "No such file"),
    "payload cut": (
        lambda p: cut(p / "rank1/payload-00000.safetensors", -4), "payload-00000", "damaged"
    ),
    "no payload": (
        lambda p: (p / "rank1/payload-00000.safetensors").unlink(), "payload-00000", "missing"
    ),
}  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_rank_is_refused_with_its_file_and_the_damage(whole: Path, damage: str) -> None:
    apply_damage, file, fault = DAMAGE[damage]
    apply_damage(whole)
    with pytest.raises(TraceError) as caught:
        Trace.open(whole)
    assert file in str(caught.value)
    assert fault in str(caught.value)
    assert "rank1" in str(caught.value)
    assert "Record it again" in str(caught.value)


@pytest.mark.parametrize("damage", DAMAGE)
def test_the_undamaged_rank_of_a_damaged_trace_can_be_read(whole: Path, damage: str) -> None:
    DAMAGE[damage][0](whole)
    trace = Trace.open(whole, allow_incomplete=True)
    assert not trace.complete
    assert [rank.complete for rank in trace.ranks] == [True, False]
    assert torch.equal(trace.load(0, trace.ranks[0].tensors[WEIGHT]), torch.arange(8.0))
    with pytest.raises(TraceError, match="not complete"):
        trace.require_complete()


def test_events_before_the_end_of_a_cut_file_are_readable(whole: Path) -> None:
    drop_last_line(whole / "rank1/events.jsonl")
    trace = Trace.open(whole, allow_incomplete=True)
    assert trace.ranks[1].note("ran") == ["1"]
    assert trace.load(1, trace.ranks[1].tensors[WEIGHT])[0] == 1


def test_a_changed_value_is_detected_when_it_is_loaded(whole: Path) -> None:
    payload = whole / "rank1/payload-00000.safetensors"
    data = bytearray(payload.read_bytes())
    data[-1] ^= 1
    payload.write_bytes(data)
    trace = Trace.open(whole)
    with pytest.raises(TraceError, match="does not have its recorded hash"):
        trace.load(1, trace.ranks[1].tensors[WEIGHT])


def test_an_event_with_a_payload_in_another_folder_is_refused(whole: Path) -> None:
    events = whole / "rank1/events.jsonl"
    events.write_bytes(events.read_bytes().replace(b"payload-00000", b"../rank0/payload-00000"))
    with pytest.raises(TraceError, match="is not the name of a payload"):
        Trace.open(whole)


def edit(path: Path, **changes: object) -> None:
    manifest = path / "manifest.json"
    manifest.write_text(json.dumps(with_changes(json.loads(manifest.read_text()), **changes)))


def test_another_schema_version_is_refused_with_both_versions(whole: Path) -> None:
    edit(whole, schema=99)
    with pytest.raises(TraceError, match=r"schema version 99.*reads version 10"):
        Trace.open(whole)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"format": "something else"}, "is not a trace"),
        ({"world_size": 3}, "contradicts itself"),
        ({"program": 7}, "damaged"),
        ({"point": {"tp": 1}, "world_size": 1}, "contains rank1"),
    ],
)
def test_a_manifest_that_contradicts_itself_or_the_folder_is_refused(
    whole: Path, changes: dict[str, object], words: str
) -> None:
    edit(whole, **changes)
    with pytest.raises(TraceError, match=words):
        Trace.open(whole, allow_incomplete=True)


def test_a_folder_without_a_manifest_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"is not a trace: manifest\.json cannot be read"):
        Trace.open(tmp_path)


def test_a_truncated_manifest_is_refused_with_its_name(whole: Path) -> None:
    cut(whole / "manifest.json", 30)
    with pytest.raises(TraceError, match=r"manifest\.json is not JSON"):
        Trace.open(whole)


@pytest.mark.parametrize(
    ("mesh", "words"),
    [
        ([{"name": "dp", "role": "rows"}], "'dp' has the unknown role 'rows'"),
        ([{"name": "dp", "role": "dp"}] * 2, "the axis 'dp' is declared twice"),
        ([{"name": "dp"}], "the axis 'dp' must have either a role or axes"),
        ([{"name": "x" * 100, "role": "dp"}], "is not the name of an axis"),
        ([{"name": "rows", "role": "dp"}], "has 1 ranks, but world_size is 2"),
        ("dp", "Expected `array`"),
    ],
)
def test_an_invalid_mesh_in_a_manifest_is_refused(whole: Path, mesh: object, words: str) -> None:
    edit(whole, mesh=mesh)
    with pytest.raises(TraceError, match=re.escape(words)):
        Trace.open(whole)


def test_a_size_of_an_overlapping_axis_must_be_a_number(whole: Path) -> None:
    edit(whole, point={"tp": 2, "ep": "all"})
    with pytest.raises(TraceError, match="the size of ep is 'all', not a number"):
        Trace.open(whole)


def test_ranks_get_their_coordinates_from_the_mesh_of_the_manifest(whole: Path) -> None:
    mesh = [{"name": "tp", "role": "tp"}, {"name": "rows", "role": "dp"}]
    edit(whole, mesh=mesh, point={"rows": 2})

    trace = Trace.open(
        whole, allow_incomplete=True
    )  # the ranks recorded the hash of the original manifest

    assert trace.sizes == {"rows": 2, "tp": 1}
    assert [rank.coordinates["dp"] for rank in trace.ranks] == [0, 1]


def test_the_part_of_one_rank_is_read_although_that_of_another_is_damaged(whole: Path) -> None:
    cut(whole / EVENTS, -5)

    read = Trace.open(whole, only=0)

    assert [len(rank.tensors) for rank in read.ranks] == [1, 0]
    assert read.ranks[0].note("ran") == ["0"]
    with pytest.raises(TraceError, match=r"events\.jsonl"):
        Trace.open(whole, only=1)
