"""Calls of torch.distributed that write in place are collectives of a captured graph."""

import re

import pytest
import torch
import torch.distributed as dist

from pytest_trainsafe import ArgumentError
from pytest_trainsafe.judges.refine.errors import GraphError
from pytest_trainsafe.judges.refine.graphs.modules import capture
from pytest_trainsafe.judges.refine.problem.declared import stated_problem
from pytest_trainsafe.judges.refine.prove import Proof, Refutation, prove

_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


def reduced(x, rank, planted):
    group = dist.new_group([0, 1])
    total = x.clone()
    dist.all_reduce(total, op=dist.ReduceOp.MAX if planted else dist.ReduceOp.SUM, group=group)
    return total


def gathered(x, rank, planted):
    whole = x.new_empty((2 * x.shape[0], *x.shape[1:]))
    _gather(whole, x, async_op=True).wait()
    halves = whole.chunk(2)
    return halves[0] + halves[1] if not planted else halves[0] + halves[0]


def gathered_in_lists(x, rank, planted):
    parts = [torch.empty_like(x), torch.empty_like(x)]
    dist.all_gather(parts, x)
    return parts[0] + parts[1] if not planted else parts[1]


def scattered(x, rank, planted):
    own = x.new_empty((x.shape[0] // 2, *x.shape[1:]))
    _scatter(own, x)
    whole = x.new_empty(x.shape)
    _gather(whole, own * 2 if planted else own)
    return whole


def moved(x, rank, planted):
    """Each rank adds its half of the rows, which it gets from the others, and hands it on."""
    came = torch.empty_like(x)
    dist.all_to_all_single(came, x)
    own = came[:1] + came[1:]
    whole = x.new_empty(x.shape)
    _gather(whole, own.flip(1) if planted else own)
    return whole


def scattered_in_lists(x, rank, planted):
    own = torch.empty_like(x[0])
    dist.reduce_scatter(own, [x[1] if planted else x[0], x[1]])
    parts = [torch.empty_like(own), torch.empty_like(own)]
    dist.all_gather(parts, own)
    return torch.stack(parts)


def moved_in_lists(x, rank, planted):
    """Rank 0 adds three columns, which it gets from the others and hands on; rank 1 the fourth."""
    mine = [slice(0, 3), slice(3, 4)]
    came = [x.new_empty(mine[rank].stop - mine[rank].start, 2) for _ in range(2)]
    dist.all_to_all(came, [x.t()[mine[0]].contiguous(), x.t()[mine[1]].contiguous()])
    own = came[0] + came[0] if planted else came[0] + came[1]
    rows = [x.new_empty(3, 2), x.new_empty(1, 2)]
    dist.all_to_all(rows, [own, own])
    return torch.cat(rows).t()


def sent(x, rank, planted):
    """Rank 1 sends its term to rank 0, which broadcasts the sum."""
    other = torch.empty_like(x)
    if rank == 1:
        dist.send(x, 0)
    else:
        dist.recv(other, 1)
    total = x + other
    dist.broadcast(total, 1 if planted else 0)
    return total


CALLS = [
    *(reduced, gathered, gathered_in_lists, scattered, scattered_in_lists),
    *(moved, moved_in_lists, sent),
]


def problem(call, planted):
    """A sum of two ranks' products, made by calls of torch.distributed."""
    shapes = {"x": (2, 6), "w": (6, 4)}
    sequential = capture(
        lambda given: {"y": given["x"] @ given["w"]},
        {name: torch.ones(shape) for name, shape in shapes.items()},
    )
    given = {"x": torch.ones(2, 3), "w": torch.ones(3, 4)}
    ranks = [
        capture(
            lambda given, rank=rank: {"y": call(given["x"] @ given["w"], rank, planted)},
            given,
            rank=rank,
            ranks=2,
        )
        for rank in (0, 1)
    ]
    relation = {"inputs": {"x": "concat 1", "w": "concat 0"}, "outputs": {"y": "replica"}}
    return stated_problem(sequential, ranks, relation)


@pytest.mark.parametrize("call", CALLS)
def test_a_sum_by_calls_that_write_in_place_is_proved_and_a_wrong_one_is_not(call):
    assert isinstance(prove(problem(call, planted=False)), Proof)
    assert isinstance(prove(problem(call, planted=True)), Refutation)


def test_a_message_that_nobody_sends_is_named():
    def waits(given):
        other = torch.empty_like(given["x"])
        dist.recv(other, 1)
        return {"y": other}

    graphs = [
        capture(waits, {"x": torch.ones(2)}, rank=0, ranks=2),
        capture(lambda given: {"y": given["x"] + 1}, {"x": torch.ones(2)}, rank=1, ranks=2),
    ]
    sequential = capture(lambda given: {"y": given["x"] + 1}, {"x": torch.ones(2)})
    with pytest.raises(GraphError, match=r"rank 0 waits in .*p2p\.recv_.* for the ranks \[1\]"):
        prove(stated_problem(sequential, graphs, None))


def test_an_update_in_place_changes_the_parameters_of_one_rank_only():
    """Both sides begin with the same values, although the first one writes into its own."""

    def step(given):
        parameter = torch.nn.Parameter(given["w"])
        optimizer = torch.optim.AdamW([parameter], 0.1)
        (parameter.square().sum()).backward()
        optimizer.step()
        return {"new": parameter.detach()}

    graphs = [capture(step, {"w": torch.ones(4)}, rank=rank, ranks=2) for rank in (0, 1)]
    sequential = capture(step, {"w": torch.ones(4)})
    proof = prove(stated_problem(sequential, graphs, None))
    assert isinstance(proof, Proof)
    assert str(proof.outputs["new"]) == "replica of new"


def test_a_condition_on_a_tensor_is_refused_with_its_line():
    def clipped(given):
        return given["x"] if given["x"].sum() > 1 else given["x"] * 2

    with pytest.raises(GraphError, match=re.escape("test_refine_calls.py")) as raised:
        capture(clipped, {"x": torch.ones(2)})
    assert 'if given["x"].sum() > 1' in str(raised.value)


def test_two_tensors_with_one_name_are_refused():
    with pytest.raises(ArgumentError, match="several tensors that are called 'x'"):
        capture(lambda given: {"x": given["x"] + 1}, {"x": torch.ones(2)})


def test_one_tensor_for_two_arguments_is_two_inputs():
    x = torch.ones(2)
    graph = capture(lambda given: {"z": given["x"] - given["y"]}, {"x": x, "y": x})
    assert graph.by_name["z"].inputs == ("x", "y")
