"""Random mutations of a rank's graph are never certified, unless float64 says nothing changed."""

import random
from dataclasses import replace

import pytest
import torch

from pytest_trainsafe.judges.refine.errors import CannotSayError, GraphError
from pytest_trainsafe.judges.refine.evaluate.run import evaluated
from pytest_trainsafe.judges.refine.graphs.graph import INPUT, Graph, Ref
from pytest_trainsafe.judges.refine.prove import Proof, prove
from tests.support.refine.graphs import mlp

SAME_SHAPES = {"aten.gelu.default": "aten.relu.default", "aten.add.Tensor": "aten.sub.Tensor"}


def mutated(graph: Graph, chance: random.Random) -> Graph:
    """The graph with one operator, constant or argument changed."""
    nodes = list(graph.nodes)
    while True:
        place = chance.randrange(len(nodes))
        node = nodes[place]
        kind = chance.choice(["operator", "argument", "reduction", "constant", "swap"])
        if node.operator == INPUT:
            continue
        if kind == "operator" and node.operator in SAME_SHAPES:
            changed = replace(node, operator=SAME_SHAPES[node.operator])
        elif kind == "argument" and node.args and isinstance(node.args[0], Ref):
            others = [
                each.name
                for each in nodes[:place]
                if each.shape == graph.by_name[node.args[0].name].shape
            ]
            changed = replace(node, args=(Ref(chance.choice(others)), *node.args[1:]))
        elif kind == "reduction" and "all_reduce" in node.operator:
            changed = replace(
                node, args=(node.args[0], chance.choice(["avg", "max"]), node.args[2])
            )
        elif kind == "constant" and node.operator == "aten.add.Tensor":
            changed = replace(node, kwargs={"alpha": chance.choice([0.5, 1.0, 1 + 2**-20])})
        elif kind == "swap" and node.operator == "aten.add.Tensor":
            changed = replace(node, args=node.args[::-1])
        else:
            continue
        if changed == node:
            continue
        nodes[place] = changed
        return Graph(tuple(nodes), graph.outputs, graph.name)


def unchanged(problem) -> bool:
    """Whether the results of both sides are equal in float64."""
    (doubles,) = evaluated(problem, 17, [])
    return all(
        torch.allclose(doubles.sequential["index"], rank["index"], rtol=1e-9, atol=0)
        for rank in doubles.ranks
    )


@pytest.mark.parametrize("seed", range(12))
def test_no_mutant_is_certified_that_float64_tells_apart(seed):
    chance = random.Random(seed)
    given = mlp()
    ranks = list(given.ranks)
    for number in chance.choice([[0], [1], [0, 1]]):
        ranks[number] = mutated(ranks[number], random.Random(seed + 100))
    problem = replace(given, ranks=ranks)
    try:
        certified = isinstance(prove(problem), Proof)
    except (CannotSayError, GraphError):
        certified = False
    if certified:
        assert unchanged(problem)


def test_some_mutants_are_certified_and_some_are_not():
    """The test above can fail, and can pass for another reason than that nothing is certified."""
    given = mlp()
    swapped = []
    for graph in given.ranks:
        nodes = [
            replace(node, args=node.args[::-1]) if node.operator == "aten.add.Tensor" else node
            for node in graph.nodes
        ]
        swapped.append(Graph(tuple(nodes), graph.outputs, graph.name))
    problem = replace(given, ranks=swapped)
    assert isinstance(prove(problem), Proof)
    assert unchanged(problem)
