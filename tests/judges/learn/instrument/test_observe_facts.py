"""Facts about tensors (digest, norm, flags) are exact, and reading them has no side effects."""

from __future__ import annotations

import math

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd.grad_mode import _unsafe_preserve_version_counter
from torch.utils.flop_counter import FlopCounterMode

from pytest_trainsafe.judges.learn.instrument.facts import Objects


@pytest.mark.parametrize(
    "dtype",
    [
        *(torch.float64, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.complex64),
        *(torch.int64, torch.uint8, torch.bool),
    ],
)
def test_a_flipped_bit_changes_the_digest_and_the_memory_layout_does_not(
    dtype: torch.dtype,
) -> None:
    objects = Objects()
    x = torch.ones(2, 3).to(dtype)
    facts, _ = objects.tensor(x)
    same, _ = objects.tensor(x.t().contiguous().t())
    assert facts.digest == same.digest != 0
    other = x.clone()
    other.view(torch.uint8).view(-1)[0] ^= 1
    assert objects.tensor(other)[0].digest != facts.digest
    assert facts.finite
    assert not facts.zero


def test_zero_finite_and_norm_are_right_where_squares_underflow_or_overflow() -> None:
    objects = Objects()
    tiny, _ = objects.tensor(torch.tensor([1e-30]))
    huge, _ = objects.tensor(torch.tensor([1e30, 1e30]))
    assert not tiny.zero
    assert huge.finite
    assert huge.norm == pytest.approx(math.sqrt(2) * 1e30)
    with_nan, _ = objects.tensor(torch.tensor([1.0, float("nan")]))
    assert (with_nan.finite, with_nan.norm) == (False, None)
    assert objects.tensor(torch.zeros(3))[0].zero


def test_a_tensor_is_read_again_after_a_write() -> None:
    objects = Objects()
    x = torch.zeros(2)
    before, number = objects.tensor(x)
    x.add_(1)
    after, same = objects.tensor(x)
    assert number == same
    assert before.digest != after.digest
    x.data.add_(1)
    assert objects.tensor(x, exact=True)[0].digest != after.digest


@pytest.mark.parametrize("size", [3, 100_000])
def test_writes_that_preserve_the_version_counter_are_detected(size: int) -> None:
    """As FSDP gathers weights: into the same memory, with the version counter preserved."""
    objects = Objects()
    weight = torch.nn.Parameter(torch.ones(size))
    before, _ = objects.tensor(weight)
    version = weight._version
    with _unsafe_preserve_version_counter(weight), torch.no_grad():
        weight.mul_(2)
    assert weight._version == version
    after, _ = objects.tensor(weight)
    assert before.digest != after.digest
    assert before.norm == pytest.approx(size**0.5)
    assert after.norm == pytest.approx(2 * size**0.5)


def test_changed_flags_and_requires_grad_are_read_again() -> None:
    objects = Objects()
    weight = torch.nn.Parameter(torch.ones(2))
    assert objects.tensor(weight)[0].requires_grad
    weight.requires_grad_(False)
    weight.tensor_model_parallel = True  # type: ignore[attr-defined]
    facts, _ = objects.tensor(weight, exact=True)
    assert not facts.requires_grad
    assert facts.flags == ("tensor_model_parallel",)
    weight.allreduce = True  # type: ignore[attr-defined]
    assert objects.tensor(weight, exact=True)[0].flags == ("allreduce", "tensor_model_parallel")
    weight.allreduce = False  # type: ignore[attr-defined]
    assert objects.tensor(weight, exact=True)[0].flags == ("expert", "tensor_model_parallel")


def test_fake_meta_and_sparse_tensors_have_the_digest_zero() -> None:
    objects = Objects()
    with FakeTensorMode():
        fake = torch.ones(2)
        assert objects.tensor(fake)[0].digest == 0
    assert objects.tensor(torch.empty(2, device="meta"))[0].digest == 0
    assert objects.tensor(torch.eye(2).to_sparse())[0].digest == 0
    seen = []

    def inside(x: torch.Tensor) -> torch.Tensor:
        seen.append(objects.tensor(x)[0])
        return x * 2

    torch.func.vmap(inside)(torch.ones(2, 3))
    assert seen[0].shape == (3,)


def test_inference_tensors_are_read_each_time() -> None:
    objects = Objects()
    with torch.inference_mode():
        x = torch.zeros(2)
        before, _ = objects.tensor(x)
        x.add_(1)
        assert objects.tensor(x)[0].digest != before.digest


def test_reading_a_tensor_counts_no_flops_draws_no_numbers_and_builds_no_graph() -> None:
    x = torch.ones(4, 4, requires_grad=True)
    state = torch.get_rng_state()
    counter = FlopCounterMode(display=False)
    with counter:
        Objects().tensor(x)
    assert counter.get_total_flops() == 0
    assert torch.equal(state, torch.get_rng_state())
    assert x.grad_fn is None


def test_the_storage_of_a_read_tensor_can_be_freed_and_is_then_not_read() -> None:
    objects = Objects()
    x = torch.ones(6)
    before, _ = objects.tensor(x)
    storage = x.untyped_storage()
    assert storage.resizable()

    storage.resize_(0)
    freed, _ = objects.tensor(x, exact=True)
    storage.resize_(24)
    again, _ = objects.tensor(x.fill_(1.0), exact=True)
    assert (before.digest, freed.digest, freed.norm) == (again.digest, 0, None)
