"""The first operator without a relation: the fault is there, and what follows are its victims."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

import torch

from pytest_trainsafe.judges.refine.evaluate.memory import Reads
from pytest_trainsafe.judges.refine.graphs.graph import (
    CONSTANT,
    GETITEM,
    INPUT,
    Graph,
    Node,
    Ref,
)
from pytest_trainsafe.judges.refine.search.content import content, varies

_NOTHING_WRITTEN: Reads = {}
#: Operators whose result is the same for the negative of their input.
_EVEN = ("aten.abs", "aten.linalg_vector_norm", "aten.norm", "aten.square")
#: Operators that take the shape of an argument and none of its numbers, with its place.
_SHAPED = {
    "aten.nll_loss_backward": 1,
    "aten.nll_loss2d_backward": 1,
    "aten.native_layer_norm_backward": 6,
    "aten.expand_as": 1,
    "aten.view_as": 1,
    "aten.reshape_as": 1,
    "aten.type_as": 1,
}


def frontier(
    graph: Graph,
    values: Mapping[str, object],
    related: Collection[str],
    wrong: Iterable[str],
    opposite: Callable[[torch.Tensor], bool] = lambda _: False,
    reads: Reads = _NOTHING_WRITTEN,
) -> Node:
    """The first operator, in order of execution, that makes one of the tensors `wrong` wrong.

    From each wrong tensor it goes back through tensors without a relation.  It ends at operators
    whose inputs all have one.  A wrong tensor that has a relation, only not the one it should
    have, is its own operator's.  The wrong tensor with the fewest ends decides: a norm of all
    gradients ends at each of them, if the ranks compute it in another order, and tells nothing.
    Where all ends of a wrong tensor come after all of another's, they do not explain the other,
    and it decides nothing: so a gradient, if the loss is wrong for reasons of its own.
    A tensor of which the ranks have no counterpart, but from which one with a relation is made,
    is not at fault: so the logarithm of a softmax, if a gradient that is made of it is right.
    If `opposite` says that the ranks have its negative, they have a counterpart, which is wrong:
    a norm of gradients and their second moments are right with another sign too.
    `reads` says what operators read that was written after it was made.
    """
    order = {node.name: number for number, node in enumerate(graph.nodes)}
    sound = {*related, *_confirmed(graph, values, related, opposite, reads)}
    found = [
        sorted(order[name] for name in _ends(graph, values, related, sound, each, reads))
        for each in wrong
    ]
    soonest = min(ends[-1] for ends in found)
    _, first = min((len(ends), ends[0]) for ends in found if ends[0] <= soonest)
    return graph.nodes[first]


def _confirmed(
    graph: Graph,
    values: Mapping[str, object],
    related: Collection[str],
    opposite: Callable[[torch.Tensor], bool],
    reads: Reads,
) -> Iterator[str]:
    """The tensors without a relation of which, through such tensors alone, one with one is made.

    Items of a tuple tell only together: the gradient of a bias is right whatever the mean is.
    """
    confirmed: set[str] = set()
    negated: set[str] = set()
    items: dict[str, set[str]] = {}
    for node in graph.nodes:
        if node.operator == GETITEM and isinstance(values.get(node.name), torch.Tensor):
            items.setdefault(node.inputs[0], set()).add(node.name)
    for node in reversed(graph.nodes):
        told = {each for each in items.get(node.name, {node.name}) if varies(values.get(each))}
        telling = all(each in related or each in confirmed for each in told)
        if told and telling and node.operator != GETITEM:
            taken = {*tensors_of(graph, values, node.name, reads), *items.get(node.name, ())}
            own = reads.get(node.name, {})
            for name in (*_squared(node), *_shaped(node)):
                taken -= {*own.get(name, (name,))}
            new = taken.difference(related, confirmed, negated)
            negated |= {each for each in new if varies(x := values[each]) and opposite(x)}
            confirmed |= new - negated
    right = {content(each.double()) for name in confirmed if varies(each := values[name])}
    for name, each in values.items():  # Copies of what is right, as a backward keeps them.
        if name in confirmed or (varies(each) and content(each.double()) in right):
            yield name


def _squared(node: Node) -> set[str]:
    """The inputs of which an operator takes the square or the absolute value, by name.

    Its result does not tell the signs of their elements: second moments and norms of gradients are
    right where a part of a gradient has another sign.
    """
    short = node.short.removesuffix("_")
    if short in ("aten.mul", "aten.addcmul"):
        x, y = node.args[-2:]
        return {x.name} if isinstance(x, Ref) and x == y else set()
    even = short in _EVEN or (short == "aten.pow" and node.args[1:] == (2,))
    return set(node.inputs) if even else set()


def _shaped(node: Node) -> set[str]:
    """The input of which an operator takes nothing but the shape, by name: its result tells none.

    It tells something of an input that it takes elsewhere too.
    """
    place = _SHAPED.get(node.short)
    if place is None or place >= len(node.args):
        return set()
    others = {each.name for n, each in enumerate(node.args) if n != place and isinstance(each, Ref)}
    shape = node.args[place]
    return {shape.name} - others if isinstance(shape, Ref) else set()


def _ends(
    graph: Graph,
    values: Mapping[str, object],
    related: Collection[str],
    sound: Collection[str],
    wrong: str,
    reads: Reads,
) -> set[str]:
    ends: set[str] = set()
    seen: set[str] = set()
    waiting = [wrong]
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        without = [each for each in tensors_of(graph, values, name, reads) if each not in sound]
        if name in related or not without:
            ends.add(name)
        else:
            waiting += without
    return ends


def tensors_of(
    graph: Graph, values: Mapping[str, object], name: str, reads: Reads = _NOTHING_WRITTEN
) -> list[str]:
    """The tensors that a node computes from: of a tuple's item, those that the tuple is made of.

    Not those that are made of nothing, such as memory that nobody has written.
    """
    found: list[str] = []
    for each in _taken(graph.by_name[name], reads):
        node = graph.by_name[each]
        if not isinstance(values.get(each), torch.Tensor):
            found += tensors_of(graph, values, each, reads)
        elif node.inputs or node.operator == INPUT:
            found.append(each)
        elif node.operator == CONSTANT:
            continue
    return list(dict.fromkeys(found))


def _taken(node: Node, reads: Reads) -> Iterator[str]:
    """What a node reads, and, of a result, who wrote into it later."""
    own = reads.get(node.name, {})
    later = own.get(node.name, (node.name,))
    yield from (each for each in later if each != node.name)
    if node.name in later:
        for name in node.inputs:
            yield from own.get(name, (name,))
