"""Tensors and events that ranks write are read back bit for bit and in order."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
import torch

from pytest_trainsafe.core.layout import Shard, ZigZag
from pytest_trainsafe.core.tensor_id import TensorId
from pytest_trainsafe.trace import writer as writer_module
from pytest_trainsafe.trace.reader import MAPPED, Trace
from pytest_trainsafe.trace.run_spec import RunSpec
from pytest_trainsafe.trace.schema import InputEvent, Manifest, ModuleEvent, NoteEvent, StepEvent
from pytest_trainsafe.trace.tensors.snapshot import as_bytes
from pytest_trainsafe.trace.writer import RankWriter, TraceWriteError, manifest_of, write_manifest


def named(name: str) -> TensorId:
    return TensorId(0, None, "param", "layer", name)


def manifest(**axes: int) -> Manifest:
    return manifest_of(
        RunSpec(program="tests:train", axes=tuple(axes.items()), dtype="float32", seed=3), "cpu"
    )


TENSORS = {
    "strided": torch.arange(12.0).view(3, 4).t(),
    "sliced": torch.arange(12.0)[1::3],
    "empty": torch.zeros(0, 3),
    "scalar": torch.tensor(3.5),
    "bool": torch.tensor([True, False]),
    "int64": torch.arange(5) - 2,
    "uint8": torch.tensor([0, 255], dtype=torch.uint8),
    "uint16": torch.tensor([0, 65535], dtype=torch.uint16),
    "complex64": torch.tensor([1 + 2j, -3j]),
    "conjugated": torch.tensor([1 + 2j, -3j], dtype=torch.complex128).conj(),
    "complex scalar": torch.tensor(1j),
    "float64": torch.tensor([1 / 3, float("nan"), -0.0], dtype=torch.float64),
    "float16": torch.tensor([1.5, float("inf")], dtype=torch.float16),
    "bfloat16": torch.tensor([0.1, -7.0]).bfloat16(),
    "float8": torch.tensor([0.1, -7.0]).to(torch.float8_e4m3fn),
    "float8 fnuz": torch.tensor([0.1, -7.0]).to(torch.float8_e5m2fnuz),
    "needs grad": torch.ones(2, requires_grad=True) * 2,
    "expanded": torch.tensor([1.0]).expand(4),
}


@pytest.mark.parametrize("name", TENSORS)
def test_every_kind_of_tensor_is_read_back_bit_for_bit(tmp_path: Path, name: str) -> None:
    tensor = TENSORS[name]
    write_manifest(tmp_path, manifest(tp=1))
    writer = RankWriter(tmp_path, 0)
    event = writer.add_tensor(named(name), tensor, (Shard(0, "tp"),), "attribute")
    writer.close()
    trace = Trace.open(tmp_path)
    loaded = trace.load(0, trace.ranks[0].tensors[named(name)])
    assert trace.ranks[0].tensors[named(name)] == event
    assert loaded.dtype == tensor.dtype
    assert loaded.shape == tensor.shape
    expected = tensor.detach().resolve_conj().contiguous()
    assert as_bytes(loaded).tolist() == as_bytes(expected).tolist()


def test_a_sparse_tensor_is_recorded_in_dense_form(tmp_path: Path) -> None:
    dense = torch.tensor([[0.0, 2.0], [0.0, 0.0]])
    write_manifest(tmp_path, manifest(tp=1))
    writer = RankWriter(tmp_path, 0)
    event = writer.add_tensor(named("grad"), dense.to_sparse())
    writer.close()
    assert torch.equal(Trace.open(tmp_path).load(0, event), dense)


def test_a_tensor_on_the_meta_device_is_refused(tmp_path: Path) -> None:
    writer = RankWriter(tmp_path, 0)
    with pytest.raises(TraceWriteError, match="meta device"):
        writer.add_tensor(named("weight"), torch.empty(2, device="meta"))


def test_a_tensor_that_changes_later_is_recorded_with_its_value_at_the_time(tmp_path: Path) -> None:
    write_manifest(tmp_path, manifest(tp=1))
    writer = RankWriter(tmp_path, 0)
    tensor = torch.ones(4)
    event = writer.add_tensor(named("weight"), tensor)
    tensor.add_(1)
    writer.close()
    assert torch.equal(Trace.open(tmp_path).load(0, event), torch.ones(4))


def test_tensors_of_equal_shape_and_values_share_a_payload_entry(tmp_path: Path) -> None:
    writer = RankWriter(tmp_path, 0)
    first = writer.add_tensor(named("a"), torch.ones(4))
    same = writer.add_tensor(named("b"), torch.ones(4))
    shaped = writer.add_tensor(named("c"), torch.ones(2, 2))
    writer.flush()
    later = writer.add_tensor(named("d"), torch.ones(4))
    assert (same.file, same.key) == (first.file, first.key) == (later.file, later.key)
    assert (shaped.hash, shaped.key == first.key) == (first.hash, False)


def test_all_events_are_read_back_in_order(tmp_path: Path) -> None:
    write_manifest(tmp_path, manifest(tp=2))
    events = [
        ModuleEvent("layer", "Linear", "model.py:3", ("weight",)),
        InputEvent(0, 0, ("ab",)),
        NoteEvent("dropout", "layer"),
        StepEvent(0, 1, "x", "y", True, 0.5),
    ]
    for number in range(2):
        writer = RankWriter(tmp_path, number)
        for event in events:
            writer.add(event)
        recorded = writer.add_tensor(named("w"), torch.ones(1), (ZigZag(0, "cp"),))
        writer.close()
        assert recorded.seq == len(events)
    trace = Trace.open(tmp_path)
    assert trace.complete
    assert trace.manifest == manifest(tp=2)
    assert [rank.coordinates["tp"] for rank in trace.ranks] == [0, 1]
    for rank in trace.ranks:
        assert rank.events == [*events, recorded]
        assert list(rank.modules.values()) == events[:1]
        assert rank.inputs == events[1:2]
        assert rank.note("dropout") == ["layer"]
        assert rank.steps == events[3:]
    assert list(trace.ids()) == [named("w")]
    assert [rank.rank for rank, _ in trace.holders(named("w"))] == [0, 1]


def test_payloads_are_written_together_with_the_events_that_name_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer_module, "FLUSH_BYTES", 64)
    write_manifest(tmp_path, manifest(tp=1))
    writer = RankWriter(tmp_path, 0)
    for number in range(6):
        writer.add_tensor(named(str(number)), torch.full((10,), float(number)))
        lines = (tmp_path / "rank0/events.jsonl").read_bytes() if number > 0 else b""
        files = {path.name for path in (tmp_path / "rank0").glob("payload*")}
        assert {msgspec.json.decode(line)["file"] for line in lines.splitlines()} == files
    assert len(files) == 3
    crashed = Trace.open(tmp_path, allow_incomplete=True)
    assert [crashed.load(0, e)[0].item() for e in crashed.ranks[0].tensors.values()] == [
        *map(float, range(6))
    ]


def test_a_closed_writer_refuses_events(tmp_path: Path) -> None:
    writer = RankWriter(tmp_path, 0)
    writer.close()
    with pytest.raises(TraceWriteError, match="was closed"):
        writer.add(NoteEvent("ran", "b"))


def test_a_trace_of_many_payload_files_is_read_with_few_files_mapped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer_module, "FLUSH_BYTES", 40)
    write_manifest(tmp_path, manifest(tp=2))
    for rank in range(2):
        writer = RankWriter(tmp_path, rank)
        for number in range(8):
            writer.add_tensor(named(str(number)), torch.full((10,), float(number + rank)))
        writer.close()
    trace = Trace.open(tmp_path)
    assert len(list(tmp_path.glob("rank*/payload*"))) == 16
    for number in (*range(8), *reversed(range(8))):
        parts = [trace.load(r.rank, event) for r, event in trace.holders(named(str(number)))]
        assert [part[0].item() for part in parts] == [number, number + 1]
        assert len(trace._payloads) <= MAPPED * 2
