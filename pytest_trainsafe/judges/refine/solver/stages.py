"""The parts of graphs between tensors with known relations, each a small problem of its own."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from pytest_trainsafe.arithmetic import Doubles, ExactMode, Numbers
from pytest_trainsafe.judges.refine.evaluate.constants import constants
from pytest_trainsafe.judges.refine.evaluate.draw import bounds, floats, value_of
from pytest_trainsafe.judges.refine.evaluate.kernels import semantics
from pytest_trainsafe.judges.refine.evaluate.lockstep import evaluate
from pytest_trainsafe.judges.refine.graphs.graph import INPUT, Graph, Node
from pytest_trainsafe.judges.refine.mesh import RankMesh
from pytest_trainsafe.judges.refine.problem.problem import Problem
from pytest_trainsafe.judges.refine.relations.combine import combine
from pytest_trainsafe.judges.refine.relations.cut import cut
from pytest_trainsafe.judges.refine.relations.relation import Relation

Relations = Mapping[str, Sequence[Relation]]
_ALONE = RankMesh({})
#: Operators with whose results no stage begins: they only move elements, so
#: that tensors of several shapes have the same, or their results are equal to any other one's.
_NOT_COMPUTED = tuple(
    f"aten.{name}"
    for name in ("view", "_unsafe_view", "reshape", "t", "transpose", "permute", "unsqueeze",
                 "squeeze", "expand", "clone", "detach", "alias", "contiguous", "_to_copy",
                 "zeros_like", "ones_like", "full_like", "empty_like", "new_zeros", "new_empty")
)  # fmt: skip


@dataclass(frozen=True)
class Stage:
    """How `tensor`, and the ranks' tensors of its relation, are made of tensors with relations.

    `given` are the relations of what the stage begins with, and `same` says which of these the
    sequential graph's inputs are; the graphs have nothing else.
    """

    tensor: str
    relation: Relation
    given: Sequence[tuple[str, Relation]]
    same: Mapping[str, str]
    sequential: Graph
    ranks: Sequence[Graph]
    problem: Problem

    def both(self, numbers: Numbers, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
        """The sequential tensor, and what its relation makes of the ranks' tensors."""
        mode = ExactMode(numbers, semantics())
        problem = self.problem
        below = {**bounds(problem.sequential), **problem.below}
        nodes = problem.sequential.by_name
        entered = {name: mode.enter(value_of(nodes[name], below, seed)) for name, _ in self.given}

        def draw(name: str, shape: Sequence[int]) -> torch.Tensor:
            return mode.enter(floats(name, shape, seed))

        held: list[dict[str, torch.Tensor]] = [{} for _ in self.ranks]
        for name, relation in self.given:
            parts = cut(name, entered[name], relation, problem.mesh, numbers, draw)
            for values, part in zip(held, parts, strict=True):
                values.update(part)
        for values, graph in zip(held, self.ranks, strict=True):
            values.update(constants(graph, values, problem.constants, numbers))
            mode.note(*(each for each in values.values() if each.is_floating_point()))
        own = constants(self.sequential, self.same, problem.constants, numbers)
        mode.note(*(each for each in own.values() if each.is_floating_point()))
        begun = {name: entered[other] for name, other in self.same.items()}
        (values,) = evaluate([self.sequential], [own | begun], _ALONE, mode)
        ranks = evaluate(list(self.ranks), held, problem.mesh, mode)
        return values[self.tensor], combine(self.relation, ranks, problem.mesh, numbers)

    def holds_alone(self) -> Doubles | None:
        """The decisions of the stage on real numbers, if the relation holds there by itself.

        It does not if other operators write into the memory of one of its tensors.
        """
        doubles = Doubles()
        x, made = (each.double().reshape(-1) for each in self.both(doubles))
        same = x.shape == made.shape and torch.allclose(
            x, made, rtol=1e-9, atol=1e-11, equal_nan=True
        )
        return doubles if same else None


def stages(problem: Problem, relations: Relations, names: Collection[str] = ()) -> Iterator[Stage]:
    """A stage for each float tensor with a relation, in the order of execution; or of `names`."""
    known: dict[str, tuple[str, Relation]] = {}
    first: dict[tuple[object, str], str] = {}
    earlier: dict[str, str] = {}
    for node in problem.sequential.nodes:
        found = relations.get(node.name, ())
        wanted = not names or node.name in names
        if found and node.inputs and wanted and _is_float(node):
            stage = _stage(problem, relations, node, found[0], known, earlier)
            if stage is not None:
                yield stage
        computed = node.inputs and _is_float(node) and node.short not in _NOT_COMPUTED
        if not found or not (node.name in problem.inputs or computed):
            continue
        fitting = [each for each in found if _fits(problem, node, each)]
        if found[0] in fitting:  # What one relation makes is equal.
            keys = [(node.shape, str(each)) for each in found]
            same = next((first[key] for key in keys if key in first), node.name)
            first.update(dict.fromkeys(keys, same))
            earlier[node.name] = same
            for relation in fitting:
                for name in relation.names:
                    known.setdefault(name, (earlier[node.name], relation))


def _fits(problem: Problem, node: Node, relation: Relation) -> bool:
    """Whether the ranks hold the tensor in its own shape, or in that of its parts.

    Relations are found by content, and a flattened tensor has the same.
    """
    if node.shape is None or not relation.invertible:
        return False
    shape = list(node.shape)
    for step in relation.steps:
        if step.kind == "permute":
            shape = [shape[step.numbers.index(dim)] for dim in range(len(shape))]
        elif step.kind == "concat" and step.dim < len(shape):
            count = problem.mesh.axes[step.axis] if step.axis else len(relation.names)
            parts = sum(size for size, _ in step.parts)
            shape[step.dim] = parts or shape[step.dim] // count
    held = [graph.by_name.get(name) for graph in problem.ranks for name in relation.names]
    return all(each is None or each.shape == tuple(shape) for each in held)


def _is_float(node: Node) -> bool:
    return node.shape is not None and (node.dtype or "").startswith(("f", "bf"))


def _stage(
    problem: Problem,
    relations: Relations,
    node: Node,
    relation: Relation,
    known: Mapping[str, tuple[str, Relation]],
    earlier: Mapping[str, str],
) -> Stage | None:
    given: dict[tuple[str, Relation], None] = {}
    sequential, begun = _closure(problem.sequential, [node.name], earlier)
    same = {name: earlier[name] for name in begun if name in earlier}
    for name in same.values():
        given[name, relations[name][0]] = None
    ranks = []
    for graph in problem.ranks:
        own, reached = _closure(graph, [n for n in relation.names if n in graph.by_name], known)
        ranks.append(own)
        for name in reached:
            if name not in known:
                return None
            given[known[name]] = None
    if len(same) < len(begun) or not given:
        return None
    inputs = {name for _, each in given for name in each.names}
    whole = [_with_inputs(problem.sequential, sequential, same),
             *(_with_inputs(graph, own, inputs)
               for graph, own in zip(problem.ranks, ranks, strict=True))]  # fmt: skip
    return Stage(node.name, relation, list(given), same, whole[0], whole[1:], problem)


def _closure(
    graph: Graph, wanted: Sequence[str], stops: Collection[str]
) -> tuple[set[str], list[str]]:
    """The nodes from which `wanted` are made, back to those of `stops`, and which these are."""
    inside: set[str] = set()
    begun: dict[str, None] = {}
    waiting = list(wanted)
    first = set(wanted)
    while waiting:
        name = waiting.pop()
        if name in inside or name in begun:
            continue
        node = graph.by_name[name]
        if (name in stops and name not in first) or node.operator == INPUT:
            begun[name] = None
            continue
        inside.add(name)
        waiting += node.inputs
    return inside, list(begun)


def _with_inputs(graph: Graph, inside: Collection[str], inputs: Collection[str]) -> Graph:
    """The nodes of a stage in their order, in which what it begins with are inputs."""
    nodes = []
    for node in graph.nodes:
        if node.name in inside:
            nodes.append(node)
        elif node.name in inputs:
            nodes.append(replace(node, operator=INPUT, args=(), kwargs={}))
    last = nodes[-1].name if nodes else None
    return Graph(tuple(nodes), (last,), graph.name)
