"""Gradient buckets, their overlapped reduction, and the sharded updates of ZeRO."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from pytest_trainsafe.reference_models.parallel.axes import Axes, Axis
from pytest_trainsafe.reference_models.parallel.data.buckets import Bucket, fill_buckets
from pytest_trainsafe.reference_models.parallel.data.reduction import BucketedReduction
from pytest_trainsafe.reference_models.parallel.data.zero import ShardedAdamW
from pytest_trainsafe.reference_models.parallel.techniques import Techniques
from pytest_trainsafe.reference_models.training import main_gradients


def parameters(*sizes: int, dtype: torch.dtype = torch.float32) -> list[nn.Parameter]:
    return [
        nn.Parameter(torch.full((size,), float(n), dtype=dtype)) for n, size in enumerate(sizes)
    ]


def test_buckets_hold_every_parameter_once_in_reverse_order() -> None:
    made = parameters(7, 5, 4, 3)
    buckets = fill_buckets(made, size=8, axis=lambda _: Axis(4))
    assert [[each.numel() for each in bucket.places] for bucket in buckets] == [[3, 4, 5], [7]]
    assert [bucket.share for bucket in buckets] == [3, 2]  # padded to 12 and 8
    for bucket in buckets:
        for parameter, (start, end) in bucket.places.items():
            parameter.main_grad.fill_(end)  # type: ignore[attr-defined]
            assert bool((bucket.gradients[start:end] == end).all())


def test_parameters_of_different_dtypes_have_separate_buckets() -> None:
    made = [*parameters(3), *parameters(3, dtype=torch.bfloat16), *parameters(3)]
    buckets = fill_buckets(made, size=100, axis=lambda _: Axis(1))
    assert [next(iter(bucket.places)).dtype for bucket in buckets] == [
        torch.float32, torch.bfloat16, torch.float32,
    ]  # fmt: skip
    assert {bucket.gradients.dtype for bucket in buckets} == {torch.float32}


def test_the_reduction_of_a_bucket_starts_after_the_gradients_of_the_last_micro_batch() -> None:
    layer = nn.Linear(3, 2).bfloat16()
    axes = Axes(techniques=Techniques(overlap_grad_reduce=True, bucket=2))
    reduction = BucketedReduction(list(layer.parameters()), axes, backwards=2)
    inputs = torch.ones(1, 3, dtype=torch.bfloat16)

    layer(inputs).sum().backward()
    assert not reduction._underway
    layer(inputs).sum().backward()
    assert len(reduction._underway) == 2
    reduction.finish()
    main_gradients.accumulate(layer.parameters())

    assert layer.weight.grad is None
    weight, bias = list[Any](layer.parameters())
    assert weight.main_grad.tolist() == [[2.0] * 3] * 2
    assert bias.main_grad.dtype == torch.float32


def test_a_gradient_beyond_the_expected_number_of_backwards_is_refused() -> None:
    layer = nn.Linear(3, 2)
    axes = Axes(techniques=Techniques(overlap_grad_reduce=True))
    BucketedReduction(list(layer.parameters()), axes, backwards=1)
    layer(torch.ones(1, 3)).sum().backward()
    with pytest.raises(RuntimeError, match=r"2 terms were added .*set overlap_grad_reduce=False"):
        layer(torch.ones(1, 3)).sum().backward()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_every_element_is_updated_by_exactly_one_rank(dtype: torch.dtype) -> None:
    held = torch.zeros(4, 7)
    for rank in range(4):
        model = nn.Linear(3, 2, bias=True).to(dtype)
        bucket = Bucket(list(model.parameters()), Axis(4, rank))
        optimizer = ShardedAdamW(model, [bucket], Axes(dp_cp=Axis(4, rank)), 1e-3)
        places = dict[Any, int](zip(model.parameters(), [0, 6], strict=True))
        for parameter, first in places.items():
            start, end = parameter.main_param_range
            assert (parameter.main_param is None) == (start == end)
            held[rank, first + start : first + end] += 1
            if start < end:
                assert parameter.main_param.dtype == torch.float32
                flat = parameter.detach().reshape(-1)[start:end]
                assert torch.equal(parameter.main_param.detach(), flat.float())
        assert sum(p.numel() for p in optimizer.param_groups[0]["params"]) <= bucket.share
    assert held[:, :8].sum(dim=0).tolist() == [1.0] * 7


def test_a_module_waits_for_its_own_parameters_and_settle_waits_for_the_others() -> None:
    model = nn.Sequential(nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False))
    axes = Axes(zero=1, techniques=Techniques(overlap_param_gather=True, bucket=1))
    reduction = BucketedReduction(list(model.parameters()), axes, backwards=1)
    optimizer = ShardedAdamW(model, reduction.buckets, axes, learning_rate=0.5)
    before = [parameter.detach().clone() for parameter in model.parameters()]
    model(torch.ones(1, 1)).sum().backward()
    reduction.finish()
    optimizer.step()

    def moved() -> list[bool]:
        return [not torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True)]

    assert moved() == [False, False]
    model[1](torch.ones(1, 1))
    assert moved() == [False, True]
    optimizer.settle()
    assert moved() == [True, True]
    for parameter in list[Any](model.parameters()):
        assert torch.equal(parameter.detach().reshape(-1), parameter.main_param.detach())
