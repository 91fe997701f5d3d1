"""The nodes of autograd, the running backward, and the transforms of torch.func."""

from __future__ import annotations

from typing import Any

import torch

from pytest_trainsafe.compat import autograd
from pytest_trainsafe.compat.private import lacking


def seen_in_backward(read: Any) -> tuple[Any, Any]:
    """What `read()` returns inside the backward of a node, and the node."""
    found = []

    class Reading(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
            found.append(read())
            return grad

    y = Reading.apply(torch.ones(2, requires_grad=True))
    node = y.grad_fn
    (y * 2).sum().backward()
    [value] = found
    return value, node


def test_each_operation_on_a_tensor_with_a_gradient_makes_a_node() -> None:
    before = autograd.nodes_made()
    x = torch.ones(2, requires_grad=True)
    assert autograd.nodes_made() == before
    (x * 2).sum()
    assert autograd.nodes_made() == before + 2


def test_a_backward_has_a_number_of_its_own_while_it_runs() -> None:
    assert autograd.running_backward() == -1
    first, _ = seen_in_backward(autograd.running_backward)
    second, _ = seen_in_backward(autograd.running_backward)
    assert -1 < first < second
    assert autograd.running_backward() == -1


def test_the_running_node_is_the_one_whose_derivative_is_computed() -> None:
    number, node = seen_in_backward(autograd.running_node)
    assert number == node._sequence_nr()


def test_only_tensors_inside_a_transform_are_transformed() -> None:
    found = []

    def function(x: torch.Tensor) -> torch.Tensor:
        found.append((autograd.is_transformed(x), autograd.inside_transform()))
        with autograd.outside_transforms():
            found.append((autograd.is_transformed(torch.ones(1)), autograd.inside_transform()))
        return x * 2

    torch.func.vmap(function)(torch.ones(3))
    assert found == [(True, True), (False, False)]
    assert not autograd.inside_transform()
    with autograd.outside_transforms():
        assert not autograd.is_transformed(torch.ones(1))


def test_without_the_number_of_nodes_no_repeated_call_is_identified_and_backwards_are_still_seen(
    without: Any,
) -> None:
    copy = without("autograd", "torch.autograd._get_sequence_nr")
    assert copy.nodes_made() == 0
    assert seen_in_backward(copy.running_node)[0] is None
    assert seen_in_backward(copy.running_backward)[0] > -1
    [why] = lacking()
    assert why.startswith("forwards that a backward runs again are not told from others: torch ")
    assert why.endswith(" has no torch.autograd._get_sequence_nr")


def test_without_the_names_of_transforms_plain_tensors_are_read_as_before(without: Any) -> None:
    copy = without("autograd", "torch._C._functorch.peek_interpreter_stack")
    with copy.outside_transforms():
        assert not copy.is_transformed(torch.ones(1))
        assert not copy.inside_transform()
    assert copy.NODES.available
    assert not copy.TRANSFORMS.available


def test_a_node_knows_the_shapes_that_its_operator_made(without: Any) -> None:
    y = torch.ones(3, 1, requires_grad=True) - torch.ones(3)
    assert autograd.shape_made(y.grad_fn, 0) == (3, 3)
    assert autograd.shape_made(y.grad_fn, 1) is None
    copy = without("autograd", "torch.autograd._get_sequence_nr")
    assert copy.shape_made(object(), 0) is None
    assert any("_input_metadata" in each for each in lacking())


def test_an_operator_whose_derivative_uses_its_result_is_known() -> None:
    x = torch.ones(2, requires_grad=True)
    assert autograd.uses_own_result(torch.tanh(x).grad_fn)
    assert not autograd.uses_own_result((x + 1).grad_fn)
    assert not autograd.uses_own_result(None)
