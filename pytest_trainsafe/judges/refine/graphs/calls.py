"""Calls of torch.distributed in a captured graph, as nodes of collectives, sends and receives.

torch.distributed writes into tensors that it is given.  Here a collective is a functional node and,
where the call writes its result into another tensor, a copy into that one.  A process group is
named by its ranks: "ranks 0 2".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from pytest_trainsafe.judges.refine.errors import GraphError
from pytest_trainsafe.judges.refine.graphs.graph import Argument, Node, Ref
from pytest_trainsafe.judges.refine.mesh import RANKS

SPACE = "c10d."
#: torch.distributed.ReduceOp, by number.
_KINDS = {0: "sum", 1: "avg", 3: "min", 4: "max"}

#: What a call returns, by the places of its items; a Work has none.
Result = tuple[Any, ...]


def group_name(script: Any) -> str:
    """The name of the process group that a script object holds, while it exists."""
    group = torch.distributed.ProcessGroup.unbox(script)
    return named(torch.distributed.get_process_group_ranks(group))


def named(ranks: Sequence[int]) -> str:
    return RANKS + " ".join(map(str, ranks))


class Calls:
    """Translates the calls of one graph; `objects` has the script objects by their nodes' names.

    `known` has the nodes before a call by name, for the shapes that their results state.
    """

    def __init__(self, objects: Mapping[str, Any], known: Mapping[str, Node]) -> None:
        self.objects = objects
        self.known = known
        self.results: dict[str, Any] = {}

    def item(self, name: str, index: int) -> Any:
        """The item of a call's result: a Ref, a list of results, or None for a Work."""
        found = self.results[name]
        return found[index] if isinstance(found, tuple) and index < len(found) else None

    def nodes(self, node: Node) -> Iterator[Node]:
        """The nodes that do what a call of torch.distributed does."""
        short = node.operator.split(".")[1]
        translate = _CALLS.get(short)
        if translate is None:
            raise GraphError(
                f"{node} calls torch.distributed's {short}, which no graph holds; it holds "
                f"{', '.join(sorted(_CALLS))}"
            )
        nodes, result = translate(self, node)
        self.results[node.name] = result
        own: dict[str, Node] = {}
        for each in nodes:
            first = each.args[0]
            if isinstance(first, tuple):
                first = first[0]
            assert isinstance(first, Ref)
            made_of = own.get(first.name) or self.known.get(first.name)
            own[each.name] = each if made_of is None else _shaped(each, made_of)
        yield from own.values()

    def group(self, argument: Argument) -> str:
        assert isinstance(argument, Ref)
        return group_name(self.objects[argument.name])

    def ranks(self, argument: Argument) -> list[int]:
        return [int(rank) for rank in self.group(argument).removeprefix(RANKS).split()]

    def rows(self, node: Node, tensors: Argument) -> tuple[int, ...]:
        """The length of the first dimension of each tensor of a list."""
        assert isinstance(tensors, tuple)
        counts = []
        for each in tensors:
            shape = self.known[each.name].shape if isinstance(each, Ref) else None
            if not shape:
                raise GraphError(f"{node} exchanges a tensor without rows, or of unknown shape")
            counts.append(shape[0])
        return tuple(counts)

    def kind(self, node: Node, argument: Argument) -> str:
        assert isinstance(argument, Ref)
        number = int(self.objects[argument.name].op())
        if number not in _KINDS:
            raise GraphError(f"{node} reduces by the ReduceOp {number}, which has no semantics")
        return _KINDS[number]


Translated = tuple[list[Node], Result]


def _node(node: Node, name: str, operator: str, *args: Argument) -> Node:
    full = f"{node.name}.{name}" if name else node.name
    return Node(full, operator, args, {}, None, None, node.source, node.module, node.line)


def _shaped(node: Node, made_of: Node) -> Node:
    """A node of a call with the shape that follows from that of its first tensor."""
    shape, kind = made_of.shape, node.short.split(".")[1]
    if shape is None or kind in ("all_to_all_single", "cat", "slice"):
        return node  # How many rows come is what the others send.
    if kind == "all_gather_into_tensor":
        shape = (shape[0] * _count(node, 1), *shape[1:])
    elif kind == "reduce_scatter_tensor":
        shape = (shape[0] // _count(node, 2), *shape[1:])
    elif kind == "unsqueeze":
        shape = (1, *shape)
    elif kind == "stack":
        assert isinstance(node.args[0], tuple)
        shape = (len(node.args[0]), *shape)
    elif kind == "select":
        shape = shape[1:]
    return replace(node, dtype=made_of.dtype, shape=shape)


def _count(node: Node, place: int) -> int:
    count = node.args[place]
    assert isinstance(count, int)
    return count


def _written(node: Node, output: Argument, collective: Node, result: Any = None) -> Translated:
    copy = _node(node, "", "aten.copy_.default", output, Ref(collective.name))
    return [collective, copy], (Ref(node.name), None) if result is None else result


def _all_reduce(calls: Calls, node: Node) -> Translated:
    tensors, group, op = node.args[:3]
    assert isinstance(tensors, tuple)
    kind, name = calls.kind(node, op), calls.group(group)
    made = [
        _node(node, str(number), "_c10d_functional.all_reduce_.default", each, kind, name)
        for number, each in enumerate(tensors)
    ]
    return made, (tuple(Ref(each.name) for each in made), None)


def _all_gather(calls: Calls, node: Node) -> Translated:
    output, part, group = node.args[:3]
    size, name = len(calls.ranks(group)), calls.group(group)
    operator = "_c10d_functional.all_gather_into_tensor.default"
    return _written(node, output, _node(node, "gathered", operator, part, size, name))


def _all_gather_lists(calls: Calls, node: Node) -> Translated:
    outputs, parts, group = node.args[:3]
    assert isinstance(outputs, tuple)
    assert isinstance(parts, tuple)
    size, name = len(calls.ranks(group)), calls.group(group)
    nodes: list[Node] = []
    results = []
    for number, (row, part) in enumerate(zip(outputs, parts, strict=True)):
        assert isinstance(row, tuple)
        # A new first dimension, along which the parts of all ranks are taken apart again.
        rows = _node(node, f"rows{number}", "aten.unsqueeze.default", part, 0)
        operator = "_c10d_functional.all_gather_into_tensor.default"
        whole = _node(node, f"gathered{number}", operator, Ref(rows.name), size, name)
        nodes += [rows, whole]
        made = []
        for index, output in enumerate(row):
            one = f"part{number}_{index}"
            part_of = _node(node, one, "aten.select.int", Ref(whole.name), 0, index)
            copy = f"{number}_{index}"
            nodes += [
                part_of,
                _node(node, copy, "aten.copy_.default", output, Ref(part_of.name)),
            ]
            made.append(Ref(f"{node.name}.{copy}"))
        results.append(tuple(made))
    return nodes, (tuple(results), None)


def _reduce_scatter(calls: Calls, node: Node) -> Translated:
    output, whole, group, op = node.args[:4]
    size, name, kind = len(calls.ranks(group)), calls.group(group), calls.kind(node, op)
    operator = "_c10d_functional.reduce_scatter_tensor.default"
    return _written(node, output, _node(node, "scattered", operator, whole, kind, size, name))


def _reduce_scatter_lists(calls: Calls, node: Node) -> Translated:
    outputs, rows, group, op = node.args[:4]
    assert isinstance(outputs, tuple)
    assert isinstance(rows, tuple)
    size, name, kind = len(calls.ranks(group)), calls.group(group), calls.kind(node, op)
    operator = "_c10d_functional.reduce_scatter_tensor.default"
    nodes: list[Node] = []
    for number, (output, parts) in enumerate(zip(outputs, rows, strict=True)):
        # A new first dimension, which the ranks have one index of.
        whole = _node(node, f"rows{number}", "aten.stack.default", parts, 0)
        mine = _node(node, f"scattered{number}", operator, Ref(whole.name), kind, size, name)
        row = _node(node, f"part{number}", "aten.select.int", Ref(mine.name), 0, 0)
        copy = _node(node, str(number), "aten.copy_.default", output, Ref(row.name))
        nodes += [whole, mine, row, copy]
    made = tuple(Ref(f"{node.name}.{number}") for number in range(len(outputs)))
    return nodes, (made, None)


def _all_to_all_lists(calls: Calls, node: Node) -> Translated:
    outputs, parts, group = node.args[:3]
    assert isinstance(outputs, tuple)
    received, sent = calls.rows(node, outputs), calls.rows(node, parts)
    whole = _node(node, "rows", "aten.cat.default", parts, 0)
    operator = "_c10d_functional.all_to_all_single.default"
    moved = _node(node, "moved", operator, Ref(whole.name), received, sent, calls.group(group))
    nodes = [whole, moved]
    first = 0
    for number, (output, count) in enumerate(zip(outputs, received, strict=True)):
        name, last = f"part{number}", first + count
        part = _node(node, name, "aten.slice.Tensor", Ref(moved.name), 0, first, last)
        nodes += [part, _node(node, str(number), "aten.copy_.default", output, Ref(part.name))]
        first = last
    return nodes, (tuple(Ref(f"{node.name}.{number}") for number in range(len(outputs))), None)


def _coalesced(one: Callable[[Calls, Node], Translated]) -> Callable[[Calls, Node], Translated]:
    """Several collectives in one call, each with an output and an input."""

    def translate(calls: Calls, node: Node) -> Translated:
        outputs, parts, *rest = node.args
        assert isinstance(outputs, tuple)
        assert isinstance(parts, tuple)
        nodes: list[Node] = []
        for number, pair in enumerate(zip(outputs, parts, strict=True)):
            alone = replace(node, name=f"{node.name}.{number}", args=(*pair, *rest))
            nodes += one(calls, alone)[0]
        return nodes, (None,)

    return translate


def _all_to_all(calls: Calls, node: Node) -> Translated:
    output, x, group, received, sent = node.args[:5]
    operator = "_c10d_functional.all_to_all_single.default"
    moved = _node(node, "moved", operator, x, received, sent, calls.group(group))
    return _written(node, output, moved, (None,))


def _broadcast(calls: Calls, node: Node) -> Translated:
    tensors, group, root = node.args[:3]
    assert isinstance(tensors, tuple)
    assert isinstance(root, int)
    name, source = calls.group(group), calls.ranks(group)[root]
    made = [
        _node(node, str(number), "_c10d_functional.broadcast_.default", each, source, name)
        for number, each in enumerate(tensors)
    ]
    return made, (tuple(Ref(each.name) for each in made), None)


def _sent(operator: str) -> Callable[[Calls, Node], Translated]:
    def translate(calls: Calls, node: Node) -> Translated:
        tensors, group, other, tag = node.args[:4]
        assert isinstance(tensors, tuple)
        assert isinstance(other, int)
        rank = calls.ranks(group)[other]
        made = [
            _node(node, str(number), operator, each, rank, tag)
            for number, each in enumerate(tensors)
        ]
        return made, (None,)

    return translate


def _nothing(calls: Calls, node: Node) -> Translated:
    return [], (None,)


_CALLS: dict[str, Callable[[Calls, Node], Translated]] = {
    "allreduce_": _all_reduce, "_allgather_base_": _all_gather, "allgather_": _all_gather_lists,
    "_reduce_scatter_base_": _reduce_scatter, "reduce_scatter_": _reduce_scatter_lists,
    "alltoall_base_": _all_to_all, "alltoall_": _all_to_all_lists,
    "broadcast_": _broadcast, "send": _sent("p2p.send"), "recv_": _sent("p2p.recv_"),
    "barrier": _nothing, "allreduce_coalesced_": _all_reduce,
    "allgather_into_tensor_coalesced_": _coalesced(_all_gather),
    "reduce_scatter_tensor_coalesced_": _coalesced(_reduce_scatter),
}  # fmt: skip
