"""torch passes a Work of Python through its operators, and waits for it by its methods."""

from __future__ import annotations

import torch

from pytest_trainsafe.compat.distributed import held_work
from pytest_trainsafe.compat.distributed.held_work import (
    Held,
    HeldWork,
    boxed,
    unboxed,
    wait_by_tensor,
)


def made(output: torch.Tensor, *inputs: torch.Tensor) -> HeldWork:
    return HeldWork(Held(lambda: [torch.ones(2)], [output], inputs), ())


def test_a_work_that_went_through_torch_is_the_same_object() -> None:
    work = made(torch.zeros(2))
    assert unboxed(boxed(work)) is work
    work.wait()


def test_torch_waits_for_the_work_of_a_tensor_though_only_torch_refers_to_it() -> None:
    output = torch.zeros(2)
    wait_by_tensor(output, made(output))
    assert output.isnan().all()
    torch.ops._c10d_functional.wait_tensor(output)
    assert output.tolist() == [1.0, 1.0]


def test_a_work_lives_until_it_has_delivered_and_no_longer() -> None:
    work = made(torch.zeros(2))
    assert work in held_work._undelivered.values()
    work.wait()
    assert work not in held_work._undelivered.values()


def test_results_are_written_without_autograds_notice() -> None:
    """A backend in C++ may write a tensor that a backward needs."""
    weight = torch.ones(2, requires_grad=True)
    x = torch.full((2,), 3.0)
    product = weight * x
    made(x, x).wait()
    product.sum().backward()
    assert weight.grad is not None
    assert weight.grad.tolist() == [1.0, 1.0]
