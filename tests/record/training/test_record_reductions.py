"""Collectives that may reduce gradients are recorded once each, with the line that calls them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from pytest_trainsafe.core.point import Point
from pytest_trainsafe.launch.collectives.collective import Collective
from pytest_trainsafe.record.clock import Clock
from pytest_trainsafe.record.training.reductions import Reductions
from pytest_trainsafe.trace.facts import Reduction
from pytest_trainsafe.trace.writer import RankWriter
from tests.support.record import collective_wrapper

POINT = Point.of(tp=2, dp=2)
#: Of 4, 6 and 20 elements.
PARAMETERS = [torch.ones(4), torch.ones(2, 3), torch.ones(20)]
TP, DP, WORLD = (0, 1), (0, 2), (0, 1, 2, 3)


class ReductionWriter(RankWriter):
    """Keeps the recorded reductions in lists."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, 0)
        self.found: list[Reduction] = []
        self.of_norm: list[Reduction] = []

    def add(self, event: object) -> None:
        assert isinstance(event, Reduction)
        (self.found if event.of == "gradients" else self.of_norm).append(event)


@pytest.fixture
def events(tmp_path: Path) -> ReductionWriter:
    return ReductionWriter(tmp_path)


def call(ranks: tuple[int, ...] = DP, op: str = "all_reduce", **more: object) -> Collective:
    known = {"reduce": "SUM", "dtype": "float32", "shape": (4,), "site": "fit.py:7", **more}
    return Collective(group="", ranks=ranks, op=op, **known)  # type: ignore[arg-type]


def test_each_reduction_is_recorded_once_with_its_axes(events: ReductionWriter) -> None:
    clock = Clock()
    clock.start_step()
    reductions = Reductions(clock, events, POINT, PARAMETERS)
    for each in (call(), call(), call(WORLD), call(TP, "reduce_scatter_tensor", site="fit.py:9")):
        reductions.on_collective(each)
    assert [(str(made), made.site) for made in events.found] == [
        ("all_reduce(SUM) over dp", "fit.py:7"),
        ("all_reduce(SUM) over tp and dp", "fit.py:7"),
        ("reduce_scatter_tensor(SUM) over tp", "fit.py:9"),
    ]


def test_a_reduction_says_whether_it_is_asynchronous(events: ReductionWriter) -> None:
    clock = Clock()
    clock.start_step()
    reductions = Reductions(clock, events, POINT, PARAMETERS)
    reductions.on_collective(call(asynchronous=True))
    reductions.on_collective(call(site="fit.py:9"))
    assert [made.asynchronous for made in events.found] == [True, False]


def test_a_reduction_of_the_total_size_of_several_parameters_is_recorded(
    events: ReductionWriter,
) -> None:
    clock = Clock()
    clock.start_step()
    reductions = Reductions(clock, events, POINT, PARAMETERS)
    reductions.on_collective(call(TP, shape=(10,)))  # the parameters of 4 and of 6 elements
    reductions.on_collective(call(TP, shape=(8,)))  # only one parameter has 4 elements
    assert [made.numel for made in events.found] == [10]


@pytest.mark.parametrize(
    "other",
    [
        call(op="broadcast"),
        call(op="all_gather_into_tensor"),
        call(dtype="int64"),
        call(shape=(1,)),
        call(shape=(7,)),
        call((0,)),
    ],
    ids=["broadcast", "gather", "counts", "a number", "no parameter's size", "alone"],
)
def test_collectives_that_reduce_no_gradients_are_not_recorded(
    events: ReductionWriter, other: Collective
) -> None:
    clock = Clock()
    reductions = Reductions(clock, events, POINT, PARAMETERS)
    reductions.on_collective(call())  # before the first step
    clock.start_step()
    reductions.on_collective(other)
    assert events.found == []


@pytest.mark.parametrize(
    "of",
    [{"shape": (2, 3)}, {"shape": (31,)}, {"shape": (7,), "name": "w.grad"}, {"shape": None}],
    ids=["a copy", "a bucket", "a gradient", "several"],
)
def test_collectives_that_may_reduce_gradients_are_recorded(
    events: ReductionWriter, of: dict[str, object]
) -> None:
    clock = Clock()
    clock.start_step()
    Reductions(clock, events, POINT, PARAMETERS).on_collective(call(**of))  # type: ignore[arg-type]
    assert len(events.found) == 1


def test_a_scalar_reduction_outside_of_micro_batches_is_recorded_as_of_the_norm(
    events: ReductionWriter,
) -> None:
    clock = Clock()
    clock.start_step()
    reductions = Reductions(clock, events, POINT, PARAMETERS)
    reductions.on_collective(call(TP, shape=()))
    clock.start_microbatch(0)
    reductions.on_collective(call(DP, shape=(), site="fit.py:9"))  # a loss, or a count of tokens
    assert [str(made) for made in events.of_norm] == ["all_reduce(SUM) of one number over tp"]
    assert events.found == []


def test_reductions_of_different_sizes_on_one_line_are_recorded_separately(
    events: ReductionWriter,
) -> None:
    clock = Clock()
    clock.start_step()
    reductions = Reductions(clock, events, POINT, PARAMETERS)
    for shape in ((4,), (2, 3), (4,)):
        reductions.on_collective(call(shape=shape))
    assert [made.numel for made in events.found] == [4, 6]


def test_within_a_micro_batch_only_reductions_over_dp_are_recorded(events: ReductionWriter) -> None:
    """Full DDP buckets are reduced there; over tp and cp, the model itself communicates."""
    clock = Clock()
    clock.start_step()
    clock.start_microbatch(0)
    reductions = Reductions(clock, events, POINT, PARAMETERS)
    for ranks in (TP, WORLD, DP):
        reductions.on_collective(call(ranks))
    assert [made.axes for made in events.found] == [("dp",)]


def test_within_a_micro_batch_reductions_of_known_gradients_are_recorded_over_any_axis(
    events: ReductionWriter,
) -> None:
    clock = Clock()
    clock.start_step()
    clock.start_microbatch(0)
    reductions = Reductions(clock, events, POINT, PARAMETERS)
    names = ("w.grad", "w.grad and more", "w", "w and more")
    for size, name in enumerate(names, 7):
        reductions.on_collective(call(WORLD, shape=(size,), name=name))
    assert [made.numel for made in events.found] == [7, 8]


def test_within_a_backward_reductions_over_cp_are_recorded_in_hooks_on_gradients(
    events: ReductionWriter,
) -> None:
    """Overlapped buckets are reduced in hooks; autograd functions reduce what the model needs."""
    clock = Clock()
    clock.start_step()
    clock.start_microbatch(0)
    point = Point.of(tp=2, cp=2)
    reductions = Reductions(clock, events, point, PARAMETERS)

    class Model(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            reductions.on_collective(call((0, 2), site="forward.py:1"))
            return x.clone()

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
            reductions.on_collective(call((0, 2), site="backward.py:1"))
            return gradient

    def hook(parameter: torch.Tensor) -> None:
        reductions.on_collective(call((0, 2), site="hook.py:1"))
        reductions.on_collective(call((0, 1), site="hook.py:2"))  # over tp
        reductions.on_collective(call((0, 2), site="hook.py:3", shape=()))

    parameter = torch.nn.Parameter(torch.ones(4))
    parameter.register_post_accumulate_grad_hook(hook)
    Model.apply(parameter).sum().backward()
    assert [made.site for made in events.found + events.of_norm] == ["hook.py:1"]


def test_a_collective_in_a_wrapper_function_is_recorded_with_its_caller(
    events: ReductionWriter,
) -> None:
    clock = Clock()
    clock.start_step()
    reductions = Reductions(clock, events, POINT, PARAMETERS)
    line = sys._getframe().f_lineno + 1
    collective_wrapper.reduce(lambda site: reductions.on_collective(call(site=site)))
    [made] = events.found
    assert made.site.startswith(f"{collective_wrapper.__file__}:")
    assert made.caller == f"{__file__}:{line}"


def test_in_an_optimizers_step_a_padded_or_stacked_gradient_counts_too(
    events: ReductionWriter,
) -> None:
    clock = Clock()
    clock.start_step()
    reductions = Reductions(clock, events, POINT, PARAMETERS)
    padded = call(op="reduce_scatter_tensor", shape=(7,))
    reductions.on_collective(padded)
    assert events.found == []
    clock.stepping = True
    reductions.on_collective(padded)
    reductions.on_collective(call(shape=(1,)))
    reductions.on_collective(call(shape=(7,), dtype="int64"))
    clock.end_step()
    clock.start_step()
    reductions.on_collective(call())
    assert [(made.numel, made.in_step) for made in events.found] == [(7, True), (4, False)]
    assert [made.in_step for made in events.of_norm] == [True]


def test_a_reduce_scatter_of_parts_has_the_elements_of_all_parts(events: ReductionWriter) -> None:
    clock = Clock()
    clock.start_step()
    reductions = Reductions(clock, events, POINT, PARAMETERS)
    # A flat buffer of all 30 elements: the output has fewer than the largest parameter.
    reductions.on_collective(call(op="reduce_scatter", shape=(15,), gives=(15, 15)))
    assert [(made.call, made.numel) for made in events.found] == [("reduce_scatter(SUM)", 30)]
