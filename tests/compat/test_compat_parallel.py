"""Reducers, communication hooks and divisors of real wrappers around a model of one rank."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed._composable.replicate import replicate
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from pytest_trainsafe.compat.distributed import parallel
from pytest_trainsafe.compat.private import lacking

pytestmark = pytest.mark.usefixtures("one_rank")


class Asking(nn.Linear):
    """Asks in its forward which wrapper is around it."""

    def __init__(self) -> None:
        super().__init__(1, 1)
        self.around: Any = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.around = parallel.active_wrapper()
        return super().forward(x)


def sharded() -> Any:
    model = nn.Linear(2, 2)
    fully_shard(model, mesh=init_device_mesh("cpu", (1,)))
    return model


def test_the_active_wrapper_is_the_one_whose_forward_runs() -> None:
    model = Asking()
    wrapper = DistributedDataParallel(model)
    wrapper(torch.ones(1, 1))
    assert model.around is wrapper
    assert parallel.active_wrapper() is None


def test_the_reducer_of_a_wrapper_has_its_group_and_hooks() -> None:
    wrapper = DistributedDataParallel(nn.Linear(1, 1))
    assert parallel.reducer_of_wrapper(wrapper) == (dist.group.WORLD, ())
    wrapper.register_comm_hook(None, fp16_compress_hook)
    assert parallel.reducer_of_wrapper(wrapper).hooks == (fp16_compress_hook,)


def test_the_divisor_of_fsdp2_is_the_one_that_the_program_sets() -> None:
    model: Any = sharded()
    assert list(parallel.divisors_of(model)) == [None]
    model.set_gradient_divide_factor(4.0)
    assert list(parallel.divisors_of(model)) == [4.0]
    assert not parallel.is_replicated(model)


def test_the_reducer_of_replicate_is_found_before_and_after_the_first_forward() -> None:
    model = nn.Linear(1, 1)
    assert parallel.reducer_of_replicate(model) is None
    replicate(model)
    before = parallel.reducer_of_replicate(model)
    model(torch.ones(1, 1))
    assert before == parallel.reducer_of_replicate(model) == (dist.group.WORLD, ())


def test_fully_shard_and_replicate_make_states_of_the_composable_class() -> None:
    model = nn.Linear(1, 1)
    replicate(model)
    states: list[Any] = [replicate.state(model), type(sharded())._get_fsdp_state(sharded())]
    assert all(isinstance(each, parallel.ComposableState) for each in states)
    assert {type(each).__name__ for each in states} == set(parallel.APPLIED_BY)


def test_without_its_names_wrappers_are_not_found_and_train(without: Any) -> None:
    copy = without("distributed.parallel")
    wrapper = DistributedDataParallel(nn.Linear(1, 1))
    model = nn.Linear(1, 1)
    replicate(model)
    (wrapper(torch.ones(1, 1)) + model(torch.ones(1, 1))).sum().backward()
    assert copy.active_wrapper() is None
    assert copy.ComposableState is None
    assert copy.reducer_of_replicate(model) is None
    assert [why.partition(":")[0] for why in lacking()] == [
        "DistributedDataParallel around a watched module is not seen",
        "modules to which `replicate` was applied are not found",
        "lines that apply `fully_shard` and `replicate` are not recorded",
    ]


def test_without_the_attributes_hooks_and_divisors_count_as_the_default(without: Any) -> None:
    copy = without("distributed.parallel", "none")
    wrapper = DistributedDataParallel(nn.Linear(1, 1))
    wrapper.register_comm_hook(None, fp16_compress_hook)
    del wrapper.__dict__["_comm_hooks"]
    assert copy.reducer_of_wrapper(wrapper) == (dist.group.WORLD, ())
    assert list(copy.divisors_of(nn.Linear(1, 1))) == []
    assert [why.rpartition(" has no ")[2] for why in lacking()] == [
        "DistributedDataParallel._comm_hooks",
        "FSDPState._fsdp_param_groups",
    ]
