"""A rung stores its numbers in another dtype and shape, and gets them back bit for bit."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
import torch

from pytest_trainsafe.align.logical import logical_tensor
from pytest_trainsafe.core.layout import Partial
from pytest_trainsafe.core.rungs import table
from pytest_trainsafe.core.tensor_id import TensorId
from pytest_trainsafe.errors import TraceError
from pytest_trainsafe.trace.check import TensorCheck
from pytest_trainsafe.trace.reader import Trace
from pytest_trainsafe.trace.run_spec import RunSpec
from pytest_trainsafe.trace.schema import Stored, TensorEvent
from pytest_trainsafe.trace.writer import RankWriter, manifest_of, write_manifest
from tests.support.trace.packed_numbers import PACKED, packed_numbers

WEIGHT, TOKENS, SUM = (TensorId(0, None, "main_grad", "layer", name) for name in "wts")


@pytest.fixture(autouse=True)
def _rung(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(table._added, "packed", "tests.support.trace.packed_numbers:RUNG")


def record(path: Path) -> Trace:
    """The trace of two ranks with exact numbers: a weight, tokens, and terms of a sum."""
    spec = RunSpec(
        program="p",
        axes=(("tp", 2),),
        dtype="packed",
        rung="tests.support.trace.packed_numbers:RUNG",
    )
    write_manifest(path, manifest_of(spec, "cpu"))
    for rank in range(2):
        writer = RankWriter(path, rank, numbers=PACKED)
        writer.add_tensor(WEIGHT, packed_numbers(5, 3, 4))
        writer.add_tensor(TOKENS, torch.arange(5))
        writer.add_tensor(SUM, packed_numbers(rank, 3, 4), (Partial("tp"),))
        writer.close()
    return Trace.open(path)


def bits(tensor: torch.Tensor) -> list[list[int]]:
    return tensor.contiguous().view(torch.int64).tolist()


def test_numbers_are_encoded_and_integers_are_not(tmp_path: Path) -> None:
    trace = record(tmp_path)

    weight, tokens = (trace.ranks[1].tensors[id] for id in (WEIGHT, TOKENS))

    assert (weight.dtype, weight.shape) == ("float64", (3, 4))
    assert weight.stored == Stored("int64", (2, 3, 4))
    assert bits(trace.load(1, weight)) == bits(packed_numbers(5, 3, 4))
    assert tokens.encoded is None
    assert trace.load(1, tokens).tolist() == [0, 1, 2, 3, 4]


def test_terms_are_merged_in_the_arithmetic_of_the_rung(tmp_path: Path) -> None:
    merged = logical_tensor(record(tmp_path), SUM)

    assert merged.tensor is not None
    assert not merged.findings
    assert bits(merged.tensor) == bits(PACKED.add(packed_numbers(0, 3, 4), packed_numbers(1, 3, 4)))


def test_a_gradient_of_several_backwards_is_added_in_the_arithmetic_of_the_rung(
    tmp_path: Path,
) -> None:
    writer = RankWriter(tmp_path, 0, numbers=PACKED)
    first, second = (writer.snapshot(WEIGHT, packed_numbers(seed, 3, 4), ()) for seed in (0, 1))

    total = first + second

    expected = PACKED.add(packed_numbers(0, 3, 4), packed_numbers(1, 3, 4))
    assert bits(total.values()) == bits(expected)
    assert total.digest == writer.snapshot(WEIGHT, expected, ()).digest


@pytest.mark.parametrize(
    ("declared", "words"),
    [
        ({"encoded": None}, "is not a torch.float64 tensor of shape"),
        ({"encoded": ["int64", [4, 6]]}, "is not a torch.int64 tensor of shape"),
        ({"encoded": ["float32", [2, 3, 4]]}, "is not a torch.float32 tensor of shape"),
        ({"shape": [5, 4]}, "cannot be decoded"),
        ({"dtype": "float32"}, "not a torch.float32 tensor of shape"),
    ],
)
def test_a_declared_codec_that_does_not_fit_is_refused(
    tmp_path: Path, declared: dict[str, object], words: str
) -> None:
    trace = record(tmp_path)
    event = trace.ranks[0].tensors[WEIGHT]
    forged = msgspec.convert({**msgspec.to_builtins(event), **declared}, TensorEvent)
    with pytest.raises(TraceError, match=words):
        trace.load(0, forged)


def test_an_unknown_stored_dtype_is_a_fault_of_the_event(tmp_path: Path) -> None:
    trace = record(tmp_path)
    event = trace.ranks[0].tensors[WEIGHT]
    forged = msgspec.structs.replace(event, encoded=Stored("Tensor", (2, 3, 4)))

    assert "stored in the unknown dtype 'Tensor'" in (TensorCheck(trace.sizes).fault(forged) or "")
