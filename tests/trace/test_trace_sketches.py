"""A writer with a sketcher records small and listed tensors in full, and sketches of the others."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import torch

from pytest_trainsafe.core.layout import Flat, Shard
from pytest_trainsafe.core.tensor_id import TensorId
from pytest_trainsafe.trace.reader import Trace, TraceError
from pytest_trainsafe.trace.run_spec import RunSpec
from pytest_trainsafe.trace.tensors.sketch import SIZE, Sketcher
from pytest_trainsafe.trace.tensors.snapshot import of_values
from pytest_trainsafe.trace.writer import RankWriter, manifest_of, write_manifest

ALONE = {"tp": 0, "cp": 0, "dp": 0, "pp": 0}
SIZES = {"tp": 1, "cp": 1, "dp": 1, "pp": 1}


def named(name: str, step: int = 0) -> TensorId:
    return TensorId(step, None, "param", "layer", name)


def recorded(path: Path, tensors: dict[TensorId, torch.Tensor], *keep: TensorId) -> Trace:
    write_manifest(path, manifest_of(RunSpec(program="p", dtype="float32"), "cpu"))
    writer = RankWriter(path, 0, Sketcher(ALONE, SIZES), frozenset(keep))
    for id, tensor in tensors.items():
        writer.add_tensor(id, tensor)
    writer.close()
    return Trace.open(path)


def test_a_large_tensor_is_recorded_only_as_a_sketch(tmp_path: Path) -> None:
    values = torch.randn(40, 50)
    trace = recorded(tmp_path, {named("large"): values})
    event = trace.ranks[0].tensors[named("large")]

    made = Sketcher(ALONE, SIZES).sketch(values, ())
    assert made is not None
    assert np.array_equal(trace.sketch(0, event), made[0])
    assert event.logical == (40, 50)
    with pytest.raises(TraceError, match=r"kept only a sketch.*--trainsafe-record full"):
        trace.load(0, event)


def test_a_tensor_no_larger_than_a_sketch_is_recorded_in_full(tmp_path: Path) -> None:
    small, large = torch.randn(SIZE // 4), torch.randn(SIZE // 4 + 1)
    trace = recorded(tmp_path, {named("small"): small, named("large"): large})
    tensors = trace.ranks[0].tensors

    assert torch.equal(trace.load(0, tensors[named("small")]), small)
    assert tensors[named("large")].key == ""


def test_a_tensor_listed_to_be_kept_is_recorded_in_full(tmp_path: Path) -> None:
    values = torch.randn(40, 50)
    ids = named("here"), named("there")
    trace = recorded(tmp_path, {id: values + n for n, id in enumerate(ids)}, ids[1])
    here, there = (trace.ranks[0].tensors[id] for id in ids)

    assert (here.key, there.sketch) == ("", -1)
    assert torch.equal(trace.load(0, there), values + 1)


def test_the_size_of_recorded_sketches_does_not_depend_on_the_size_of_the_tensors(
    tmp_path: Path,
) -> None:
    sizes = []
    for side in (32, 512):
        folder = tmp_path / str(side)
        recorded(folder, {named(str(n)): torch.randn(side, side) for n in range(4)})
        sizes.append(sum(file.stat().st_size for file in folder.rglob("*.safetensors")))

    assert 4 * SIZE < sizes[0] == sizes[1] < 5 * SIZE


def test_equal_tensors_share_one_sketch(tmp_path: Path) -> None:
    values = torch.randn(40, 50)
    trace = recorded(tmp_path, {named("a"): values, named("b"): values.clone()})
    first, second = (trace.ranks[0].tensors[named(name)] for name in "ab")

    assert (first.file, first.sketch) == (second.file, second.sketch)


def test_the_writer_frees_the_memory_of_sketches_after_writing_them(tmp_path: Path) -> None:
    """A thousand small allocations per step would fragment the memory that large tensors need."""
    writer = RankWriter(tmp_path, 0, Sketcher({}, {}))
    arrays = tracemalloc.DomainFilter(inclusive=True, domain=np.lib.tracemalloc_domain)

    tracemalloc.start()
    for step in range(3):
        for number in range(20):
            writer.add_tensor(named(f"{step}-{number}"), torch.randn(40, 50))
        writer.flush()
    held = tracemalloc.take_snapshot().filter_traces([arrays])
    tracemalloc.stop()

    assert sum(trace.size for trace in held.traces) < 20 * SIZE


def test_an_event_with_a_wrong_sketch_number_is_refused_when_it_is_loaded(tmp_path: Path) -> None:
    trace = recorded(tmp_path, {named("large"): torch.randn(40, 50)})
    events = tmp_path / "rank0/events.jsonl"
    events.write_bytes(events.read_bytes().replace(b'"sketch":0', b'"sketch":7'))
    trace = Trace.open(tmp_path, allow_incomplete=True)

    with pytest.raises(TraceError, match=r"sketch 7: index 7"):
        trace.sketch(0, trace.ranks[0].tensors[named("large")])


def test_a_changed_value_of_a_sketch_is_detected_when_it_is_loaded(tmp_path: Path) -> None:
    recorded(tmp_path, {named("large"): torch.randn(40, 50)})
    file = tmp_path / "rank0/payload-00000.safetensors"
    data = bytearray(file.read_bytes())
    data[-1] ^= 1  # the only entry
    file.write_bytes(data)
    trace = Trace.open(tmp_path)

    with pytest.raises(
        TraceError, match=r"payload-00000.*the sketches in the payload file do not have their"
    ):
        trace.sketch(0, trace.ranks[0].tensors[named("large")])


def test_a_tensor_with_contradicting_placements_has_no_sketch() -> None:
    layout = (Shard(0, "dp"), Flat(0, 1000, (40, 50), ("dp",)))

    assert Sketcher({"dp": 0}, {"dp": 2}).sketch(torch.ones(1000), layout) is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64])
def test_the_sum_of_two_snapshots_of_an_empty_tensor_is_empty(dtype: torch.dtype) -> None:
    """Such as the gradient of an expert without tokens that two backwards accumulate."""
    snapshot = of_values(torch.empty(0, 3, dtype=dtype))

    assert (snapshot + snapshot).values().shape == (0, 3)
