"""A wrong argument of a public function raises an ArgumentError that says what to pass."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from pytest_trainsafe import (
    ArgumentError,
    Loosen,
    TensorId,
    assert_equivalent,
    assert_trainsafe,
    consistent_tensor,
    divides,
    logical_tensor,
    requires,
)
from pytest_trainsafe.core.layout import Shard
from pytest_trainsafe.launch import Task
from pytest_trainsafe.runs.traces import Traces
from tests.support.compare.traces import Bench

#: Fakes of the trace fixtures, with the attributes that an assertion checks before it judges.
CANDIDATE: Any = SimpleNamespace(at=None, prefetch=None, role="candidate")
REFERENCE: Any = SimpleNamespace(at=None, prefetch=None, role="reference")

CASES: list[tuple[Callable[[], object], type[Exception], str]] = [
    (
        lambda: assert_trainsafe(REFERENCE, CANDIDATE),
        TypeError,
        r"was given the reference as its candidate; call assert_trainsafe\(candidate_trace, ref",
    ),
    (
        lambda: assert_trainsafe("kept/trace", REFERENCE),  # type: ignore[arg-type]
        TypeError,
        "was given 'kept/trace' as its candidate; .* recorded traces .* call assert_equivalent",
    ),
    (
        lambda: assert_trainsafe(CANDIDATE, None),  # type: ignore[arg-type]
        TypeError,
        r"was given None as its reference; pass the fixtures .* Call assert_trainsafe\(cand",
    ),
    (
        lambda: assert_trainsafe(CANDIDATE, REFERENCE, accept="moved"),
        TypeError,
        r"was given 'moved' as accept; accept must be a list of names of checks, as in accept",
    ),
    (
        lambda: assert_trainsafe(CANDIDATE, REFERENCE, loosen=Loosen("*", 2, "why")),  # type: ignore[arg-type]
        TypeError,
        r"was given an object of type Loosen as loosen; loosen must be a list of Loosen, as in ",
    ),
    (
        lambda: assert_equivalent(CANDIDATE, REFERENCE),
        TypeError,
        r"was given a fixture as its candidate; pass .* as candidate_trace.at\(\"float64\"\)",
    ),
    (
        lambda: assert_equivalent("a", "b", shadow=REFERENCE),
        TypeError,
        "was given a fixture as its shadow",
    ),
    (
        lambda: assert_equivalent(torch.ones(2), "b"),  # type: ignore[arg-type]
        TypeError,
        "was given an object of type Tensor as its candidate; pass a recorded trace, such as",
    ),
    (lambda: assert_equivalent("a", None), TypeError, "was given None as its reference"),  # type: ignore[arg-type]
    (lambda: Loosen("*", "3", "why"), TypeError, "takes a number as its factor, not '3'"),  # type: ignore[arg-type]
    (lambda: Loosen("*", 3, None), TypeError, "takes text as its reason, not None"),  # type: ignore[arg-type]
    (lambda: Loosen("*", 0.5, "why"), ValueError, "takes a finite factor of at least 1, not 0.5"),
    (lambda: divides("heads"), ValueError, "needs at least one axis, as in divides..heads., .tp.."),
    (lambda: requires("heads"), TypeError, "takes functions that .*requires.div.*, not 'heads'"),  # type: ignore[arg-type]
    (lambda: requires(), TypeError, "takes functions that check a Point, .*, not nothing"),
    (
        lambda: Task.of("sys:exit", world_size="2"),  # type: ignore[arg-type]
        TypeError,
        "world_size is '2'; pass the number of ranks as an int",
    ),
    (
        lambda: Traces(SimpleNamespace(), "candidate", SimpleNamespace(), "full").at("float23"),  # type: ignore[arg-type]
        ValueError,
        "candidate_trace.at takes one of float64, float32, bfloat16, float16, exact, not 'float23'",
    ),
    (
        lambda: consistent_tensor("w", (2,), dtype="float32"),  # type: ignore[arg-type]
        TypeError,
        "takes a torch dtype, such as torch.float32, not 'float32'",
    ),
    (
        lambda: consistent_tensor("w", (2,), representable=torch.int8),
        ValueError,
        "takes representable=None or one of torch.bfloat16, torch.float16, torch.float32, not",
    ),
    (
        lambda: consistent_tensor("w", (2,), layout=(Shard(0, "tp"),)),
        ValueError,
        "a layout over tp, but not this rank's coordinates and the sizes of the axes; pass coord",
    ),
    (
        lambda: logical_tensor(CANDIDATE, None),  # type: ignore[arg-type]
        TypeError,
        "takes a Trace, such as candidate_trace.at.'float32'., not an object of type",
    ),
]


@pytest.mark.parametrize(("call", "also", "message"), CASES)
def test_an_argument_error_says_what_to_pass(
    call: Callable[[], object], also: type[Exception], message: str
) -> None:
    with pytest.raises(ArgumentError, match=message) as caught:
        call()

    assert isinstance(caught.value, also)


def test_logical_tensor_refuses_a_tensor_that_no_rank_recorded(bench: Bench) -> None:
    trace = bench.measures("float32")[0]
    absent = TensorId(0, None, "param", "nowhere", "weight")

    with pytest.raises(ArgumentError, match=r"no rank of the trace .* recorded nowhere.weight"):
        logical_tensor(trace, absent)
    with pytest.raises(ArgumentError, match=r"takes a TensorId, such as one of trace.ids\(\)"):
        logical_tensor(trace, "nowhere.weight")  # type: ignore[arg-type]
    assert logical_tensor(trace, next(trace.ids())).tensor is not None


def test_assert_equivalent_accepts_correct_arguments(bench: Bench) -> None:
    reference, perturbed, shadow = bench.measures("float32")
    everything = {"perturbed": perturbed, "shadow": shadow, "accept": ("moved",), "loosen": ()}

    assert_equivalent(str(reference.path), Path(reference.path), **everything)  # type: ignore[arg-type]
