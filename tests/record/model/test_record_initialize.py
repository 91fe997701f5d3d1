"""`ctx.initialize` fills each rank's shard with its part of the logical tensor."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from pytest_trainsafe.annotations.declared import Annotations
from pytest_trainsafe.core.point import Point
from pytest_trainsafe.record.clock import ProgramError
from pytest_trainsafe.record.context import Context
from pytest_trainsafe.record.model.initialize import default_std, fill
from pytest_trainsafe.trace.facts import Overwritten

BY_COLUMN: dict[str, Any] = {"parameters": {"weight": {"tp_dim": 1}, "bias": {"tp_dim": 0}}}


def filled(shape: tuple[int, int], rank: int | None, annotations: Annotations) -> nn.Linear:
    """A layer of [out, in] features as a rank of tp=2 holds it; the whole layer for None."""
    layer = nn.Linear(shape[1], shape[0])
    if rank is not None:
        layer.bias = nn.Parameter(torch.empty(2))
    point = Point.of(tp=1 if rank is None else 2)
    fill(layer, point, point.coordinates(rank or 0), 0, default_std, annotations)
    return layer


def test_values_that_enter_a_rung_of_its_own_numbers_differ_and_are_no_simple_fractions() -> None:
    seen: list[torch.Tensor] = []

    def enter(values: torch.Tensor) -> torch.Tensor:
        seen.append(values)
        return values

    norm, point = nn.LayerNorm(200).double(), Point.of()
    fill(norm, point, point.coordinates(0), 0, default_std, Annotations.empty(), enter=enter)
    gain = next(each for each in seen if each.mean() > 0.5)
    assert gain.unique().numel() == 200
    assert not (gain * 1024 == (gain * 1024).round()).any()


@pytest.fixture
def whole() -> nn.Linear:
    return filled((4, 6), None, Annotations.empty())


@pytest.mark.parametrize("rank", [0, 1])
def test_parameters_sharded_by_annotations_get_their_part_of_the_logical_tensor(
    whole: nn.Linear, rank: int
) -> None:
    part = filled((4, 3), rank, Annotations.of(BY_COLUMN))

    assert torch.equal(part.weight, whole.weight.chunk(2, 1)[rank])
    assert torch.equal(part.bias, whole.bias.chunk(2)[rank])


def test_without_annotations_every_rank_gets_the_same_values(whole: nn.Linear) -> None:
    first, second = (filled((4, 3), rank, Annotations.empty()) for rank in (0, 1))

    assert torch.equal(first.weight, second.weight)
    assert not torch.equal(first.weight, whole.weight[:, :3])


def test_ctx_watch_refuses_a_shard_that_ctx_initialize_filled_as_replicated(record: Any) -> None:
    def train(ctx: Context) -> None:
        model = nn.Linear(3, 4)
        ctx.initialize(model)
        ctx.watch(model, annotations={"parameters": {"weight": {"tp_dim": 1}}})

    with pytest.raises(
        ProgramError, match=r"weight as whole on every rank, but in ctx\.watch the parameter is .*"
    ) as e:
        record(train, point={"tp": 2})
    assert "dimension 1 cut over tp" in str(e.value)
    assert "pass the same annotations to both" in str(e.value)


@pytest.mark.parametrize("how", ["one rank", "same annotations", "written since", "cut since"])
def test_ctx_watch_accepts_parameters_with_the_same_annotations_or_changed_since(
    record: Any, how: str
) -> None:
    cut = {"parameters": {"weight": {"tp_dim": 1}}}
    accepted = []

    def train(ctx: Context) -> None:
        model = nn.Linear(3, 4)
        ctx.initialize(model, annotations=cut if how == "same annotations" else None)
        with torch.no_grad():
            if how == "written since":
                model.weight.copy_(torch.ones(4, 3))
            elif how == "cut since":
                model.weight.data = model.weight.data[:, :2].clone()
        ctx.watch(model, annotations=cut)
        accepted.append(how)
        with ctx.step(), ctx.microbatch(0):
            pass

    record(train, point={"tp": 1 if how == "one rank" else 2})
    assert accepted == [how]


@pytest.mark.parametrize("changes", [True, False])
def test_parameters_that_change_between_ctx_initialize_and_ctx_watch_are_recorded(
    record: Any, changes: bool
) -> None:
    def train(ctx: Context) -> None:
        model = nn.Linear(3, 4)
        ctx.initialize(model)
        if changes:
            with torch.no_grad():
                model.weight.mul_(2.0)
        ctx.watch(model)
        with ctx.step(), ctx.microbatch(0):
            model(torch.ones(1, 3)).sum().backward()

    [event] = record(train).trace.ranks[0].events_of(Overwritten)
    assert event.since == (("weight",) if changes else ())


@pytest.mark.parametrize(
    ("std", "message"),
    [
        (0.02, r"was given std=0\.02; std must be a function of a parameter's name .*lambda"),
        (lambda name, shape: 0.02, r"returned 0\.02 for weight of shape \[4, 3\]; std must be a"),
        (lambda name, shape: ("0", 1.0), r"returned \('0', 1\.0\) for weight"),
    ],
)
def test_std_must_be_a_function_that_returns_mean_and_standard_deviation(
    std: Any, message: str
) -> None:
    with pytest.raises(TypeError, match=message):
        fill(nn.Linear(3, 4), Point.of(), {}, 0, std, Annotations.empty())
