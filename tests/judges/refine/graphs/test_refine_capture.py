"""Ranks of a Megatron-style block are captured forward and backward; planted bugs are refuted."""

import pytest
import torch
import torch.distributed._functional_collectives as collectives
from torch.nn import functional

from pytest_trainsafe import ArgumentError
from pytest_trainsafe.judges.refine.certificate.checker import check
from pytest_trainsafe.judges.refine.certificate.write import certificate_of
from pytest_trainsafe.judges.refine.errors import GraphError
from pytest_trainsafe.judges.refine.graphs.load import graph_of
from pytest_trainsafe.judges.refine.graphs.modules import capture, log_tensor
from pytest_trainsafe.judges.refine.problem.declared import stated_problem
from pytest_trainsafe.judges.refine.prove import Proof, Refutation, prove

TOKENS, WIDTH, WORDS = 6, 4, 10


def reduced(x):
    group = torch.distributed.group.WORLD
    assert group is not None
    return collectives.wait_tensor(collectives.all_reduce(x, "sum", group))


class Copy(torch.autograd.Function):
    """Megatron's f: nothing forward, an all-reduce backward."""

    @staticmethod
    def forward(ctx, x, planted):
        ctx.planted = planted
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        return (grad if ctx.planted == "backward" else reduced(grad)), None


class Reduce(torch.autograd.Function):
    """Megatron's g: an all-reduce forward, nothing backward."""

    @staticmethod
    def forward(ctx, x):
        return reduced(x)

    @staticmethod
    def backward(ctx, grad):
        return grad


def looked_up(table, ids, rank, ranks, planted):
    """A vocabulary-parallel embedding: each rank has its rows, and zeros for other words."""
    if ranks == 1:
        return table[ids]
    rows = table.shape[0]
    start = rank * rows + (1 if planted == "offset" and rank else 0)
    outside = (ids < start) | (ids >= start + rows)
    local = (ids - start).masked_fill(outside, 0)
    return Reduce.apply(table[local].masked_fill(outside[:, None], 0))


def block(rank, ranks, planted=""):
    """A step of the block: the loss, and the gradients of its weights."""

    def step(ids, table, norm, up, down):
        weights = [each.detach().requires_grad_() for each in (table, norm, up, down)]
        table, norm, up, down = weights
        x = looked_up(table, ids, rank, ranks, planted)
        h = functional.layer_norm(x, [WIDTH], norm)
        if ranks > 1:
            h = Copy.apply(h, planted)
        h = functional.gelu(h @ up)
        if planted == "slice":
            h = h.roll(1, 1)
        y = h @ down
        if planted == "scale":
            y = y * 0.5
        if ranks > 1 and planted != "forward":
            y = Reduce.apply(y)
        loss = (x + y).square().mean()
        return (loss, *torch.autograd.grad(loss, weights))

    return step


def problem(ranks=2, planted=""):
    graphs = [
        capture(block(0, 1), arguments(1), name="sequential"),
        *(
            capture(block(rank, ranks, planted), arguments(ranks), rank=rank, ranks=ranks)
            for rank in range(ranks)
        ),
    ]
    return stated_problem(graphs[0], graphs[1:], None)


def arguments(ranks):
    ids = torch.arange(TOKENS) % WORDS
    shapes = ((WORDS // ranks, WIDTH), (WIDTH,), (WIDTH, 8 // ranks), (8 // ranks, WIDTH))
    return [ids, *(torch.ones(shape) for shape in shapes)]


def test_a_correct_block_is_proved_with_its_gradients():
    given = problem()
    proof = prove(given)
    assert isinstance(proof, Proof)
    assert [str(each).partition(" of")[0] for each in proof.outputs.values()] == [
        "replica",
        "concat 0 over ranks",
        "replica",
        "concat 1 over ranks",
        "concat 0 over ranks",
    ]
    certificate = certificate_of(proof, given, 0)
    assert check(certificate, given.sequential, given.ranks, seed=11) > 20


#: The first operator that each bug makes wrong.
BUGS = {
    "forward": "aten.add",
    "backward": "aten.native_layer_norm_backward",
    "scale": "aten.add",
    "slice": "aten.mm",
    "offset": "aten.index",
}


@pytest.mark.parametrize("planted", BUGS)
def test_a_planted_bug_is_refuted_at_its_operator(planted):
    found = prove(problem(planted=planted))
    assert isinstance(found, Refutation)
    assert found.operator.short == BUGS[planted]
    if planted in ("forward", "backward"):
        assert found.unreduced is not None
        assert str(found.unreduced[1]).startswith("sum over ranks")


def test_graph_modules_and_exported_programs_are_graphs():
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.GELU())
    exported = torch.export.export(model, (torch.ones(2, 4),))
    graph = graph_of(exported, "model")
    assert [node.shape for node in graph.inputs] == [(4, 4), (4,), (2, 4)]
    assert isinstance(prove(stated_problem(graph, [graph], None)), Proof)
    wrong = torch.fx.symbolic_trace(torch.nn.Linear(4, 4))
    with pytest.raises(GraphError, match=r"no operator of torch\.ops"):
        graph_of(wrong, "model")


def test_a_rank_outside_of_the_group_is_refused():
    with pytest.raises(ArgumentError, match="rank=2 of ranks=2"):
        capture(block(0, 2), arguments(2), rank=2, ranks=2)


def test_a_logged_tensor_has_its_name_in_the_graph_and_the_value_of_that_moment():
    def step(given):
        hidden = log_tensor("hidden", given["x"] * 2)
        hidden.add_(1)
        return {"y": hidden.sum()}

    graph = capture(step, {"x": torch.randn(3)})
    assert graph.outputs == ("y",)
    assert graph.by_name["hidden"].short == "aten.clone", "a view would change with add_"
    problem = stated_problem(graph, [graph, graph], {"inputs": {"x": "replica"}})
    found = prove(problem)
    assert isinstance(found, Proof)
    assert str(found.relations["hidden"][0]) == "replica of hidden"


def test_a_name_is_logged_once_and_nothing_happens_outside_of_a_capture():
    x = torch.randn(3)
    assert log_tensor("x", x) is log_tensor("x", x)
    with pytest.raises(ArgumentError, match="'hidden' twice"):
        capture(lambda y: log_tensor("hidden", log_tensor("hidden", y)), [x])
