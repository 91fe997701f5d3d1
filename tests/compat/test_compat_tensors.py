"""Versions, views, local parts and addresses of real tensors, storages and generators."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

from pytest_trainsafe.compat import tensors
from pytest_trainsafe.compat.private import lacking


class Counting(torch.Tensor):
    """A subclass that counts how often its own code is asked for an attribute or a function."""

    asked = 0

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        Counting.asked += 1
        return super().__torch_function__(func, types, args, kwargs or {})


def test_each_write_raises_the_version_also_through_a_view() -> None:
    x = torch.zeros(4)
    before = tensors.version_of(x)
    x.add_(1)
    x[:2].mul_(2)
    assert tensors.version_of(x) == tensors.version_of(x.view(2, 2)) == before + 2


def test_a_view_knows_its_base() -> None:
    x = torch.zeros(4)
    assert tensors.base_of(x[:2]) is x
    assert tensors.base_of(x) is None
    assert tensors.is_view(x[:2])
    assert not tensors.is_view(x)


@pytest.mark.usefixtures("one_rank")
def test_the_local_part_of_a_dtensor_shares_its_memory() -> None:
    sharded: DTensor = distribute_tensor(torch.ones(4), init_device_mesh("cpu", (1,)), [Shard(0)])
    local = tensors.local_part(sharded)
    assert type(local) is torch.Tensor
    assert local.data_ptr() == sharded.to_local().data_ptr()


@pytest.mark.parametrize("value", [torch.ones(1), torch.nn.Parameter(torch.ones(1)), 3, None])
def test_what_is_no_dtensor_has_no_local_part(value: Any) -> None:
    assert tensors.local_part(value) is None
    assert tensors.local_part(value, value) is value


def test_python_objects_of_one_storage_have_one_address() -> None:
    x = torch.ones(4)
    storages = x.untyped_storage(), x.view(2, 2).detach().untyped_storage()
    assert len(set(map(tensors.address_of, storages))) == 1
    assert tensors.address_of(torch.ones(4).untyped_storage()) != tensors.address_of(storages[0])


def test_generators_have_addresses_of_their_own() -> None:
    made = [torch.Generator(), torch.Generator(), torch.default_generator]
    assert len(set(map(tensors.address_of, made))) == 3


def test_attributes_are_read_without_the_code_of_a_subclass() -> None:
    x = torch.ones(2).as_subclass(Counting)
    Counting.asked = 0
    with tensors.without_torch_function():
        assert x.is_floating_point()
    assert Counting.asked == 0
    x.is_floating_point()
    assert Counting.asked == 1


def test_only_classes_of_fake_tensors_are_fake() -> None:
    assert tensors.is_fake_class(FakeTensor)
    assert not tensors.is_fake_class(torch.Tensor)


def test_without_versions_a_write_is_not_seen_and_everything_else_is(without: Any) -> None:
    copy = without("tensors", "torch.Tensor._version")
    x = torch.zeros(4)
    x.add_(1)
    assert copy.version_of(x) == 0
    assert copy.base_of(x[:2]) is x
    [why] = lacking()
    assert why.startswith("writes to tensors are not noticed by their versions: torch ")


def test_without_any_name_tensors_count_as_plain_and_no_views(without: Any) -> None:
    copy = without("tensors")
    x = torch.zeros(4)
    assert copy.base_of(x[:2]) is None
    assert not copy.is_view(x[:2])
    assert not copy.is_fake_class(FakeTensor)
    with copy.without_torch_function():
        assert copy.local_part(x, x) is x


def test_a_class_like_dtensor_without_the_attribute_is_asked_for_its_local_part(
    without: Any,
) -> None:
    class Sharded(torch.Tensor):
        def to_local(self) -> torch.Tensor:
            return self.as_subclass(torch.Tensor) * 2

    copy = without("tensors", "none")
    assert copy.local_part(torch.ones(2).as_subclass(Sharded)).tolist() == [2, 2]
    [why] = lacking()
    assert why.endswith(" has no DTensor._local_tensor")


def test_without_addresses_each_python_object_counts_as_one_of_its_own(without: Any) -> None:
    class Generator:
        """As in a torch without the attribute, which no class in C lets a test remove."""

    copy = without("tensors", "none")
    first, second = Generator(), Generator()
    assert copy.address_of(first) == copy.address_of(first) != copy.address_of(second)
    assert lacking()[0].endswith(" has no Generator._cdata")
