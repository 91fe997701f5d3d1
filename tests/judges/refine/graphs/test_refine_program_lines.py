"""Each operator of a capture has the line of the program, in the backward that of the forward."""

import linecache

import pytest
import torch
import torch.distributed as dist
from torch.nn.functional import gelu, layer_norm
from torch.utils.checkpoint import checkpoint

from pytest_trainsafe import TrainsafeFailure, assert_refines
from pytest_trainsafe.judges.refine.graphs.modules import capture, log_tensor


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        return grad + grad


def recomputed(x):
    return x.tanh().tanh()


def step(given):
    x = given["x"].detach().requires_grad_()
    w = given["w"].detach().requires_grad_()
    y = gelu(x @ w)
    z = layer_norm(Doubled.apply(y), (4,))
    r = checkpoint(recomputed, z, use_reentrant=False)
    log_tensor("r", r)
    loss = (r * y).sum()
    loss.backward()
    return {"new": given["w"] - 0.1 * w.grad}


def lines():
    """The operators by the text of their line."""
    graph = capture(step, {"x": torch.ones(3, 5), "w": torch.ones(5, 4)})
    found: dict[str, list[str]] = {}
    for node in graph.nodes:
        if node.source:
            file, _, line = node.source.rpartition(":")
            text = linecache.getline(file, int(line)).strip()
            found.setdefault(text, []).append(node.short.removeprefix("aten."))
    return found


def test_an_operator_has_the_line_that_calls_it():
    found = lines()
    assert found['return {"new": given["w"] - 0.1 * w.grad}'][-2:] == ["mul", "sub"]
    # Gradients of y are added after the backward of Doubled.
    assert found["return x * 2"] == ["mul", "add"]


def test_an_operator_of_the_backward_has_the_line_of_its_forward():
    found = lines()
    assert [each for each in found["y = gelu(x @ w)"] if each.startswith(("mm", "gelu"))] == [
        "mm", "gelu", "gelu_backward", "mm", "mm",
    ]  # fmt: skip
    assert "native_layer_norm_backward" in found["z = layer_norm(Doubled.apply(y), (4,))"]
    assert found["loss.backward()"][0] == "ones_like"


def test_a_backward_in_python_has_its_own_lines():
    assert lines()["return grad + grad"] == ["add"]


def test_a_recomputed_forward_has_its_own_line():
    operators = lines()["return x.tanh().tanh()"]
    assert operators.count("tanh") == 4
    assert operators.count("tanh_backward") == 2


def test_a_copy_of_the_package_has_the_line_of_the_program():
    assert lines()['log_tensor("r", r)'][:2] == ["detach", "clone"]


def unreduced(given):
    y = given["x"] @ given["w"]
    return y + 1


def reduced(given):
    y = given["x"] @ given["w"]
    dist.all_reduce(y, dist.ReduceOp.AVG)
    return y + 1


def test_a_refutation_of_captures_names_the_line_of_the_sequential_program():
    sequential = capture(unreduced, {"x": torch.ones(3, 6), "w": torch.ones(6, 4)})
    given = {"x": torch.ones(3, 3), "w": torch.ones(3, 4)}
    ranks = [capture(reduced, given, rank=rank, ranks=2) for rank in range(2)]
    relation = {"mesh": {"tp": 2}, "inputs": {"x": "concat 1", "w": "concat 0"}}
    with pytest.raises(TrainsafeFailure) as raised:
        assert_refines(sequential, ranks, relation)
    (finding,) = raised.value.findings
    file, _, line = finding.source.rpartition(":")
    assert linecache.getline(file, int(line)).strip() in (
        'y = given["x"] @ given["w"]', "return y + 1",
    )  # fmt: skip
    assert "test_refine_program_lines.py" in str(raised.value)


def test_the_graph_of_the_only_rank_is_called_sequential():
    assert capture(unreduced, {"x": torch.ones(3, 6), "w": torch.ones(6, 4)}).name == "sequential"
    given = {"x": torch.ones(3, 3), "w": torch.ones(3, 4)}
    assert capture(reduced, given, rank=0, ranks=2).name == "rank 0"
