"""The check of tensor events refuses an event without the fields that its kind requires."""

from __future__ import annotations

from pytest_trainsafe.core.tensor_id import TensorId
from pytest_trainsafe.trace.check import TensorCheck
from pytest_trainsafe.trace.schema import TensorEvent

SIZES = {"tp": 1, "cp": 1, "dp": 1, "pp": 1}


def test_an_input_event_without_a_micro_batch_is_refused() -> None:
    check = TensorCheck(SIZES)
    for microbatch, fault in ((0, None), (None, "is an input without a micro-batch")):
        id = TensorId(0, microbatch, "input", "", "input.0")
        found = check.fault(TensorEvent(0, id, "int64", (2,), "00"))
        assert (found is None) == (fault is None)
        assert fault is None or fault in str(found)
