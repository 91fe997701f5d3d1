"""Collectives of a graph: what each rank of a group gets, given what all of them give."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from pytest_trainsafe.arithmetic import ExactMode
from pytest_trainsafe.arithmetic.semantics.collectives import begin
from pytest_trainsafe.core.untrusted import shown
from pytest_trainsafe.judges.refine.errors import CannotSayError, GraphError
from pytest_trainsafe.judges.refine.graphs.graph import Graph, Node

_SPACES = ("_c10d_functional", "c10d_functional", "vllm")
#: Collectives by their short names, with the places of their group's name and of its size.
_PLACES = {
    "all_reduce": (2, None),
    "all_gather_into_tensor": (2, 1),
    "reduce_scatter_tensor": (3, 2),
    "all_to_all_single": (3, None),
    "broadcast": (2, None),
    "all_reduce_": (2, None),
    "broadcast_": (2, None),
}
#: Messages between two ranks: the tensor, the other rank, and a tag.
PEERS = "p2p."
SEND, RECEIVE = "p2p.send", "p2p.recv_"
#: Operators that only hand on the result of a collective.
WAITS = ("wait_tensor", "_wrap_tensor_autograd")


@dataclass(frozen=True)
class Meeting:
    """A collective in which a rank waits for the others of its group."""

    rank: int
    graph: Graph
    node: Node
    args: tuple[Any, ...]
    group: tuple[int, ...]
    name: str

    @property
    def kind(self) -> str:
        return self.node.operator.split(".")[1].removesuffix("_")


class _Group:
    """What the semantics of a reduction ask of a process group, with the parts that it gathers."""

    def __init__(self, parts: Sequence[torch.Tensor]) -> None:
        self._parts = parts

    def size(self) -> int:
        return len(self._parts)

    def allgather(
        self, outputs: list[list[torch.Tensor]], given: object, opts: object = None
    ) -> _Group:
        for output, part in zip(outputs[0], self._parts, strict=True):
            output.copy_(part)
        return self

    def wait(self) -> None:
        return None


def collective(node: Node) -> str | None:
    """The short name of a node that communicates, or None."""
    space, _, rest = node.operator.partition(".")
    short = rest.split(".")[0]
    return short if space in _SPACES and short in _PLACES else None


def waits(node: Node) -> bool:
    space, _, rest = node.operator.partition(".")
    return space in _SPACES and rest.split(".")[0] in WAITS


def group_name(graph: Graph, node: Node) -> tuple[str, int | None]:
    """The name of a collective's group, and the group's size if the node states it."""
    if node.operator.startswith("vllm."):
        place, size = 1, None
    else:
        place, size = _PLACES[node.operator.split(".")[1]]
    name = node.args[place] if len(node.args) > place else None
    stated = node.args[size] if size is not None and len(node.args) > size else None
    if not isinstance(name, str) or not (stated is None or isinstance(stated, int)):
        raise GraphError(f"{graph.at(node)}: {node} does not name its process group")
    return name, stated


def peer(node: Node) -> int | None:
    """The rank to which a node sends, or from which it receives; None for another node."""
    if not node.operator.startswith(PEERS):
        return None
    rank = node.args[1] if len(node.args) > 2 else None
    return rank if isinstance(rank, int) else None


def exchange(meetings: Sequence[Meeting], mode: ExactMode) -> list[Any]:
    """The result of each rank, in the order of the group.  Raises GraphError if they differ."""
    first = meetings[0]
    for each in meetings[1:]:
        if _signature(each) != _signature(first):
            raise GraphError(
                f"rank {first.rank} calls {first.node} of shape {list(first.args[0].shape)}, and "
                f"rank {each.rank} calls {each.node} of shape {list(each.args[0].shape)} in the "
                f"same group {shown(first.name)}; their collectives do not match"
            )
    parts = [each.args[0].contiguous() for each in meetings]
    results = _moved(first, parts)
    if results is None:
        whole = _reduced(first, parts, mode)
        scattered = first.kind == "reduce_scatter_tensor"
        shares = whole.chunk(len(parts)) if scattered else [whole] * len(parts)
        results = [each.clone() for each in shares]
    mode.note(*(result for result in results if result.is_floating_point()))
    mode.met[".".join(first.node.operator.split(".")[:2])] += 1
    return results


def _signature(meeting: Meeting) -> tuple[object, ...]:
    plain = tuple(each for each in meeting.args[1:] if isinstance(each, str | int))
    shape = () if meeting.kind == "all_to_all_single" else tuple(meeting.args[0].shape)
    return meeting.kind, plain, shape


def _moved(first: Meeting, parts: list[torch.Tensor]) -> list[torch.Tensor] | None:
    """The results of a collective that computes nothing; None for a reduction."""
    if first.kind == "all_gather_into_tensor":
        return [torch.cat(parts) for _ in parts]
    if first.kind == "broadcast":
        source = first.args[1]
        if source not in first.group:
            raise GraphError(
                f"{first.graph.at(first.node)}: {first.node} broadcasts from rank {source}, which "
                f"is not in the group {list(first.group)}"
            )
        return [parts[first.group.index(source)].clone() for _ in parts]
    return None


def all_to_all(meetings: Sequence[Meeting]) -> list[torch.Tensor]:
    """What each rank gets, where `args[2]` says how many rows it sends to each of the others."""
    pieces = []
    for each in meetings:
        rows = each.args[0].shape[0]
        sizes = each.args[2] or [rows // len(meetings)] * len(meetings)  # None are equal ones.
        if len(sizes) != len(meetings) or sum(sizes) != each.args[0].shape[0]:
            raise GraphError(
                f"{each.graph.at(each.node)}: {each.node} sends {list(sizes)} rows of "
                f"{each.args[0].shape[0]} to a group of {len(meetings)} ranks"
            )
        pieces.append(each.args[0].split(list(sizes)))
    return [torch.cat([row[number] for row in pieces]) for number in range(len(meetings))]


def _reduced(first: Meeting, parts: list[torch.Tensor], mode: ExactMode) -> torch.Tensor:
    """The whole reduction of what the ranks give, which all of them get, or a part each."""
    kind, op = first.kind, str(first.args[1])
    if first.node.operator.startswith("vllm."):
        kind, op = "all_reduce", "sum"
    name = f"_c10d_functional.{kind}"
    if not {name, "_c10d_functional.all_reduce"} <= mode.semantics.keys():
        raise CannotSayError(f"{first.graph.at(first.node)}: {first.node} has no semantics", name)
    if kind == "reduce_scatter_tensor" and parts[0].shape[0] % len(parts):
        raise GraphError(
            f"{first.graph.at(first.node)}: {first.node} scatters {parts[0].shape[0]} rows over "
            f"{len(parts)} ranks, which does not divide them"
        )
    if not parts[0].is_floating_point():
        return _whole(name, parts, op)
    return begin(mode.numbers, parts[0], _Group(parts), op).finish()[0]


def _whole(name: str, parts: list[torch.Tensor], kind: str) -> torch.Tensor:
    """A reduction of integers or masks, which are the same in both arithmetics."""
    whole = torch.stack([part.to(torch.int64) for part in parts])
    results = {"sum": whole.sum(0), "max": whole.amax(0), "min": whole.amin(0)}
    if kind not in results:
        raise CannotSayError(f"a reduction of integers by {shown(kind)} has no semantics", name)
    return results[kind].to(parts[0].dtype)
