"""Calls of one module on several pipeline stages get the call numbers of the unsplit model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch

from pytest_trainsafe.align.calls import renumbered
from pytest_trainsafe.align.logical import logical_tensor
from pytest_trainsafe.core.tensor_id import Kind, TensorId
from pytest_trainsafe.trace.reader import Trace
from pytest_trainsafe.trace.run_spec import RunSpec
from pytest_trainsafe.trace.schema import ModuleEvent
from pytest_trainsafe.trace.writer import RankWriter, manifest_of, write_manifest

#: What a rank runs in a micro-batch: modules, with the value that each returns.
Calls = Sequence[tuple[str, float]]
Record = Callable[..., Trace]


@pytest.fixture
def record(tmp_path: Path) -> Record:
    """Writes a trace of two micro-batches in which each argument is one pipeline stage."""
    count = 0

    def make(*stages: Calls, tp: int = 1) -> Trace:
        nonlocal count
        count += 1
        path = tmp_path / str(count)
        point = {"pp": len(stages), "tp": tp}
        world = len(stages) * tp
        write_manifest(
            path,
            manifest_of(RunSpec(program="p", axes=tuple(point.items()), dtype="float32"), "cpu"),
        )
        for rank in range(world):
            calls = stages[rank // tp]
            writer = RankWriter(path, rank)
            for name in dict.fromkeys(name for name, _ in calls):
                writer.add(ModuleEvent(name, "Module", "", ("weight",)))
            for microbatch in range(2):
                seen: list[str] = []
                for name, value in calls:
                    for kind in ("activation", "activation_grad"):
                        id = _id(name, seen.count(name), microbatch, kind)
                        writer.add_tensor(id, torch.full((2,), value + microbatch))
                    seen.append(name)
            writer.close()
        return Trace.open(path)

    return make


def _id(name: str, call: int, microbatch: int = 0, kind: Kind = "activation") -> TensorId:
    return TensorId(0, microbatch, kind, name, "output", call)


def _value(trace: Trace, id: TensorId) -> float:
    merged = logical_tensor(trace, id)
    assert merged.findings == []
    assert merged.tensor is not None
    return float(merged.tensor[0])


#: An embedding, two layers, and another use of the embedding for multi-token prediction.
WHOLE: Calls = [("embed", 1), ("l.0", 2), ("l.1", 3), ("embed", 4), ("mtp", 5), ("head", 6)]


@pytest.mark.parametrize("tp", [1, 2])
def test_calls_on_a_later_stage_get_later_call_numbers(record: Record, tp: int) -> None:
    reference = record(WHOLE)
    trace = renumbered(record(WHOLE[:2], WHOLE[2:], tp=tp), reference)

    assert trace.renumbered == {"embed"}
    assert set(trace.ids()) == set(reference.ids())
    for id in reference.ids():
        assert _value(trace, id) == _value(reference, id)
    for rank in trace.ranks:
        assert all(event.id == id for id, event in rank.tensors.items())


def test_renumbering_keeps_a_wrong_value(record: Record) -> None:
    stage = [(name, 9.0 if name == "embed" else value) for name, value in WHOLE[2:]]
    trace = renumbered(record(WHOLE[:2], stage), record(WHOLE))

    assert _value(trace, _id("embed", 0)) == 1
    assert _value(trace, _id("embed", 1)) == 9


def test_calls_of_interleaved_stages_are_ordered_by_the_module_called_next(record: Record) -> None:
    """Each stage has two chunks, and calls `rope` before each layer."""
    whole: list[tuple[str, float]] = []
    for layer in range(4):
        whole += [("rope", 10.0 + layer), (f"l.{layer}", layer)]
    first, second = whole[:2] + whole[4:6], whole[2:4] + whole[6:]
    trace = renumbered(record(first, second), record(whole))

    assert [_value(trace, _id("rope", call)) for call in range(4)] == [10, 11, 12, 13]


def test_a_module_called_once_per_stage_and_in_the_reference_has_replicas(record: Record) -> None:
    stages = [("rope", 7.0), ("l.0", 1.0)], [("rope", 7.0), ("l.1", 2.0)]
    candidate = record(*stages)
    trace = renumbered(candidate, record([("rope", 7.0), ("l.0", 1.0), ("l.1", 2.0)]))

    assert trace is candidate
    assert len(trace.holders(_id("rope", 0))) == 2


def test_calls_are_not_renumbered_if_one_is_missing(record: Record) -> None:
    """The reference calls `embed` three times, and each of the two stages calls it once."""
    whole = [("embed", 1.0), ("l.0", 2.0), ("embed", 3.0), ("l.1", 4.0), ("embed", 5.0)]
    candidate = record(whole[:2], whole[2:4])

    assert renumbered(candidate, record(whole)) is candidate


def test_calls_are_renumbered_only_if_the_candidate_alone_has_a_pipeline(record: Record) -> None:
    whole = record(WHOLE)
    assert renumbered(whole, whole) is whole
    stages = record(WHOLE[:2], WHOLE[2:])
    assert renumbered(stages, stages) is stages
