"""Mutations of graphs of operators, by which `assert_refines` is tested: each changes one operator.

`mutations` lists those of a kind that fit a graph; `changes_function` decides in float64 whether
one changes what the graphs compute.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from pytest_trainsafe.judges.refine.errors import CannotSayError, GraphError
from pytest_trainsafe.judges.refine.evaluate.run import Evaluated, evaluated
from pytest_trainsafe.judges.refine.graphs.graph import GETITEM, Argument, Graph, Node, Ref
from pytest_trainsafe.judges.refine.problem.problem import Problem

#: Operators in whose place another one of the same arguments stands.
_OTHERS = {
    "aten.add.Tensor": "aten.sub.Tensor", "aten.sub.Tensor": "aten.add.Tensor",
    "aten.mul.Tensor": "aten.div.Tensor", "aten.div.Tensor": "aten.mul.Tensor",
    "aten.gelu.default": "aten.relu.default", "aten.silu.default": "aten.sigmoid.default",
    "aten.exp.default": "aten.sigmoid.default", "aten.sin.default": "aten.cos.default",
    "aten.cos.default": "aten.sin.default", "aten.rsqrt.default": "aten.sqrt.default",
    "aten.sqrt.default": "aten.rsqrt.default", "aten.neg.default": "aten.alias.default",
    "aten.amax.default": "aten.amin.default", "aten.lt.Scalar": "aten.le.Scalar",
    "aten.ge.Scalar": "aten.gt.Scalar",
}  # fmt: skip
_REDUCING = ("_c10d_functional.all_reduce", "_c10d_functional.reduce_scatter_tensor")
#: Operators whose result another order of two operands changes, by the place of the first.
_TWO_SIDED = {"aten.sub.Tensor": 0, "aten.div.Tensor": 0, "aten.mm.default": 0,
              "aten.bmm.default": 0, "aten.addcdiv_.default": 1}  # fmt: skip

Maker = Callable[[Graph, int, Node], Iterator[Node]]


@dataclass(frozen=True)
class Mutation:
    """A kind of change, and the node that takes the place of the one of its name."""

    kind: str
    node: Node

    def __str__(self) -> str:
        return f"{self.kind} of {self.node.name}"

    def of(self, graph: Graph) -> Graph:
        nodes = tuple(self.node if each.name == self.node.name else each for each in graph.nodes)
        return replace(graph, nodes=nodes)


def mutations(graph: Graph, kind: str) -> list[Mutation]:
    """All mutations of a kind that fit a graph, in the order of its operators."""
    make = KINDS[kind]
    return [
        Mutation(kind, changed)
        for place, node in enumerate(graph.nodes)
        for changed in make(graph, place, node)
        if changed != node
    ]


def drawn(graph: Graph, chance: random.Random) -> Mutation:
    """A random mutation: first the kind, then the place."""
    while True:
        found = mutations(graph, chance.choice(sorted(KINDS)))
        if found:
            return chance.choice(found)


def mutated(problem: Problem, mutation: Mutation, ranks: Sequence[int]) -> Problem:
    """The problem with a mutation of some ranks' graphs."""
    graphs = [
        mutation.of(graph) if number in ranks and mutation.node.name in graph.by_name else graph
        for number, graph in enumerate(problem.ranks)
    ]
    return replace(problem, ranks=graphs)


def changes_function(problem: Problem, other: Problem, seeds: Sequence[int] = (1, 2, 3)) -> bool:
    """Whether the ranks' results differ in float64 by more than rounding, for one of the seeds.

    Graphs that cannot be computed any more are different too.
    """
    return any(bool(changed_tensors(problem, other, seed) & _results(problem)) for seed in seeds)


def _results(problem: Problem) -> set[tuple[int, str]]:
    """The tensors of ranks, each with its rank, of which the results that are judged are made."""
    judged = {name for relation in problem.outputs.values() for name in relation.names}
    return {
        (number, name)
        for number, graph in enumerate(problem.ranks)
        for name in judged or graph.outputs
        if name is not None
    }


def changed_tensors(problem: Problem, other: Problem, seed: int) -> set[tuple[int, str]]:
    """The tensors of ranks, each with its rank, that differ in float64; all if one has none."""
    clean = _doubles(problem, seed)
    try:
        dirty = _doubles(other, seed)
    except (CannotSayError, GraphError):
        return _results(problem)
    found = set()
    for rank, (before, after) in enumerate(zip(clean.ranks, dirty.ranks, strict=True)):
        for name, value in before.items():
            if isinstance(value, torch.Tensor) and not _close(value, after.get(name)):
                found.add((rank, name))
    return found


def _doubles(problem: Problem, seed: int) -> Evaluated:
    (found,) = evaluated(problem, seed, [])
    return found


def _close(x: torch.Tensor, y: object) -> bool:
    if not isinstance(y, torch.Tensor) or x.shape != y.shape or x.dtype != y.dtype:
        return False
    if not x.is_floating_point():
        return bool((x == y).all())
    size = float(x.abs().nan_to_num(posinf=0).max()) if x.numel() else 0.0
    return torch.allclose(x, y, rtol=1e-9, atol=1e-10 * size, equal_nan=True)


def _other_operator(graph: Graph, place: int, node: Node) -> Iterator[Node]:
    if node.operator in _OTHERS:
        yield replace(node, operator=_OTHERS[node.operator])


def _swapped(graph: Graph, place: int, node: Node) -> Iterator[Node]:
    at = _TWO_SIDED.get(node.operator)
    if at is not None and len(node.args) > at + 1:
        before, (first, second), rest = node.args[:at], node.args[at : at + 2], node.args[at + 2 :]
        if _shape(graph, first) == _shape(graph, second) is not None:
            yield replace(node, args=(*before, second, first, *rest))


def _reduction(kind: str) -> Maker:
    def make(graph: Graph, place: int, node: Node) -> Iterator[Node]:
        if node.operator.startswith(_REDUCING):
            first, _, *rest = node.args
            yield replace(node, args=(first, kind, *rest))

    return make


def _skipped(graph: Graph, place: int, node: Node) -> Iterator[Node]:
    """The reduction is left out: each rank goes on with its own term."""
    if node.operator.startswith(_REDUCING[0]):
        yield replace(node, operator="aten.alias.default", args=node.args[:1])


def _scaled(factor: float) -> Maker:
    def make(graph: Graph, place: int, node: Node) -> Iterator[Node]:
        if node.short in ("aten.mul", "aten.div", "aten.mul_", "aten.add", "aten.sub"):
            *args, last = node.args
            if isinstance(last, float) or (isinstance(last, int) and _on_floats(graph, node)):
                yield replace(node, args=(*args, last * factor))

    return make


def _weighted(alpha: float) -> Maker:
    def make(graph: Graph, place: int, node: Node) -> Iterator[Node]:
        both = len(node.args) == 2 and all(isinstance(each, Ref) for each in node.args)
        adds = node.operator in ("aten.add.Tensor", "aten.sub.Tensor")
        if adds and both and _on_floats(graph, node):
            yield replace(node, kwargs={**node.kwargs, "alpha": alpha})

    return make


def _other_part(graph: Graph, place: int, node: Node) -> Iterator[Node]:
    """A slice that starts and ends one place earlier, or another item of a tuple."""
    if node.short == "aten.slice" and len(node.args) >= 4:
        x, dim, start, end, *rest = node.args
        if type(start) is int and type(end) is int and start > 0 and end < 1 << 40:
            yield replace(node, args=(x, dim, start - 1, end - 1, *rest))
    if node.operator == GETITEM:
        for each in graph.nodes:
            same = each.operator == GETITEM and each.args[0] == node.args[0]
            if same and (each.shape, each.dtype) == (node.shape, node.dtype):
                yield replace(node, args=each.args)


def _other_dimension(graph: Graph, place: int, node: Node) -> Iterator[Node]:
    """A reduction over another dimension that leaves as many, or a softmax along it."""
    shape = _shape(graph, node.args[0]) if node.args else None
    kept = node.args[2:3] == (True,) and node.short in ("aten.sum", "aten.mean")
    if (
        shape is None
        or kept
        or node.short not in ("aten._softmax", "aten.cumsum", "aten.sum", "aten.mean")
    ):
        return
    for dim, size in enumerate(shape):
        given = node.args[1] if len(node.args) > 1 else None
        one = given[0] if isinstance(given, tuple) and len(given) == 1 else given
        if type(one) is int and dim != one % len(shape) and size == shape[one]:
            new: Argument = (dim,) if isinstance(given, tuple) else dim
            yield replace(node, args=(node.args[0], new, *node.args[2:]))


def _transposed(graph: Graph, place: int, node: Node) -> Iterator[Node]:
    """A transposition of a square is left out."""
    turns = node.short in ("aten.t", "aten.transpose", "aten.permute")
    if turns and _shape(graph, node.args[0]) == node.shape is not None:
        yield replace(node, operator="aten.alias.default", args=node.args[:1], kwargs={})


def _stale(steps: int) -> Maker:
    """An argument is another tensor of the same shape, so many such tensors earlier."""

    def make(graph: Graph, place: int, node: Node) -> Iterator[Node]:
        if not node.operator.startswith("aten.") or node.short.endswith("_"):
            return
        for number, argument in enumerate(node.args):
            if not isinstance(argument, Ref):
                continue
            same = [
                each.name
                for each in graph.nodes[:place]
                if each.shape == _shape(graph, argument) is not None
                and each.dtype == graph.by_name[argument.name].dtype
            ]
            index = same.index(argument.name) if argument.name in same else -1
            if index >= steps:
                args = list(node.args)
                args[number] = Ref(same[index - steps])
                yield replace(node, args=tuple(args))

    return make


def _shape(graph: Graph, argument: Argument) -> tuple[int, ...] | None:
    return graph.by_name[argument.name].shape if isinstance(argument, Ref) else None


def _on_floats(graph: Graph, node: Node) -> bool:
    names = [each.name for each in node.args if isinstance(each, Ref)]
    return any((graph.by_name[name].dtype or "").startswith(("f", "bf")) for name in names)


KINDS: Mapping[str, Maker] = {
    "another operator": _other_operator,
    "swapped operands": _swapped,
    "average in place of a sum": _reduction("avg"),
    "maximum in place of a sum": _reduction("max"),
    "minimum in place of a sum": _reduction("min"),
    "missing all-reduce": _skipped,
    "twice a constant": _scaled(2.0),
    "half a constant": _scaled(0.5),
    "another sign of a constant": _scaled(-1.0),
    "nearly a constant": _scaled(1 + 2**-20),
    "half a term": _weighted(0.5),
    "nearly a term": _weighted(1 - 2**-20),
    "no term": _weighted(0),
    "another part": _other_part,
    "another dimension": _other_dimension,
    "missing transposition": _transposed,
    "the tensor before": _stale(1),
    "the tensor before the one before": _stale(2),
}
