"""Evaluates the graphs of all ranks: a rank runs until it waits in a collective, then the next."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Generator, Iterable, Mapping, Sequence
from typing import Any

import torch

from pytest_trainsafe.arithmetic import ExactMode
from pytest_trainsafe.core.untrusted import shown
from pytest_trainsafe.judges.refine.errors import CannotSayError, GraphError
from pytest_trainsafe.judges.refine.evaluate.collectives import (
    RECEIVE,
    SEND,
    Meeting,
    all_to_all,
    collective,
    exchange,
    group_name,
    peer,
    waits,
)
from pytest_trainsafe.judges.refine.evaluate.memory import Place, place_of, writes
from pytest_trainsafe.judges.refine.evaluate.operators import FSDP, argument_of, compute
from pytest_trainsafe.judges.refine.graphs.graph import INPUT, Graph, Node, Ref
from pytest_trainsafe.judges.refine.mesh import RankMesh

Tensors = dict[str, Any]
Steps = Generator[Meeting, Any, None]
#: Messages that were sent and not yet received, by sender, receiver and tag.
Mail = dict[tuple[int, int, Any], deque[torch.Tensor]]


def evaluate(
    graphs: Sequence[Graph],
    given: Sequence[Mapping[str, torch.Tensor]],
    mesh: RankMesh,
    mode: ExactMode,
    partial: bool = False,
    places: dict[str, Place] | None = None,
) -> list[Tensors]:
    """The results of all nodes of each rank, by name.

    `given` has the values of inputs, of constants, and of nodes that are taken as given.  If it is
    `partial`, an input without a value is not known, and what is computed from it is left out.
    `places` is filled with the memory of each result, for one graph that writes into memory.
    Raises GraphError where collectives do not match or a rank waits for ever, and CannotSayError.
    """
    assert len(graphs) == len(given) == mesh.size
    values: list[Tensors] = [{} for _ in graphs]
    mail: Mail = defaultdict(deque)
    steps = [
        _rank(rank, graph, given[rank], mesh, mode, values[rank], partial, mail, places)
        for rank, graph in enumerate(graphs)
    ]
    waiting: dict[int, Meeting] = {}
    answers: dict[int, Any] = dict.fromkeys(range(len(graphs)))
    while answers:
        for rank in sorted(answers):
            meeting = _advance(steps[rank], answers.pop(rank))
            if meeting is not None:
                waiting[rank] = meeting
        if not waiting:
            break
        answers = _met(waiting, mode) | _received(waiting, mail)
        if not answers:
            raise _stuck(waiting)
    return values


def _advance(steps: Steps, answer: Any) -> Meeting | None:
    try:
        return steps.send(answer)
    except StopIteration:
        return None


def _met(waiting: dict[int, Meeting], mode: ExactMode) -> dict[int, Any]:
    """The results for all groups whose ranks wait in the same group, which wait no longer."""
    answers: dict[int, Any] = {}
    for rank in sorted(waiting):
        meeting = waiting.get(rank)
        if meeting is None or meeting.group[0] != rank or meeting.node.operator == RECEIVE:
            continue
        group = [waiting.get(each) for each in meeting.group]
        present = [each for each in group if each is not None and each.group == meeting.group]
        if len(present) == len(group):
            if meeting.kind == "all_to_all_single":
                results: Iterable[Any] = _noted(all_to_all(present), mode)
            else:
                results = exchange(present, mode)
            for each, result in zip(present, results, strict=True):
                answers[each.rank] = result
                del waiting[each.rank]
    return answers


def _received(waiting: dict[int, Meeting], mail: Mail) -> dict[int, Any]:
    """The messages that ranks wait for and that were sent."""
    answers: dict[int, Any] = {}
    for rank, meeting in sorted(waiting.items()):
        if meeting.node.operator == RECEIVE:
            letters = mail[meeting.group[0], rank, meeting.args[2]]
            if letters:
                answers[rank] = letters.popleft()
                del waiting[rank]
    return answers


def _noted(tensors: list[torch.Tensor], mode: ExactMode) -> list[torch.Tensor]:
    mode.note(*(each for each in tensors if each.is_floating_point()))
    return tensors


def _stuck(waiting: Mapping[int, Meeting]) -> GraphError:
    texts = [
        f"rank {rank} waits in {each.graph.at(each.node)}: {each.node} for the ranks "
        f"{list(each.group)}"
        for rank, each in sorted(waiting.items())
    ]
    return GraphError("the ranks wait for each other for ever: " + "; ".join(texts))


def _rank(
    rank: int,
    graph: Graph,
    given: Mapping[str, torch.Tensor],
    mesh: RankMesh,
    mode: ExactMode,
    values: Tensors,
    partial: bool,
    mail: Mail,
    places: dict[str, Place] | None,
) -> Steps:
    """Fills `values` node by node, and yields at each collective, whose result it is sent.

    A message is sent without waiting; where it is received, the rank waits for it.
    """
    changing = any(writes(node) or node.short.startswith(FSDP) for node in graph.nodes)
    current: Tensors = {}
    for node in graph.nodes:
        if node.name in given:
            current[node.name] = _own(given[node.name], mode) if changing else given[node.name]
        elif partial and (
            node.operator == INPUT or not all(name in current for name in node.inputs)
        ):
            continue
        elif node.operator == INPUT:
            raise GraphError(f"{graph.at(node)}: the input {shown(node.name)} has no value")
        elif waits(node):
            (first, *_) = node.args
            assert isinstance(first, Ref)
            current[node.name] = current[first.name]
        elif node.operator == SEND:
            tensor, other, tag = _message(graph, node, mesh, current)
            mail[rank, other, tag].append(_own(tensor, mode))
            current[node.name] = None
        elif node.operator == RECEIVE:
            tensor, other, tag = _message(graph, node, mesh, current)
            came = yield Meeting(rank, graph, node, (tensor, other, tag), (other,), "")
            if came.shape != tensor.shape:
                raise GraphError(
                    f"{graph.at(node)}: {node} receives the shape {list(tensor.shape)}, but rank "
                    f"{other} sends {list(came.shape)}"
                )
            current[node.name] = tensor.copy_(came)
        elif collective(node) is not None:
            current[node.name] = yield _meeting(rank, graph, node, mesh, current)
            if node.operator.split(".")[1].endswith("_"):
                _write(node, current)
        else:
            current[node.name] = compute(graph, node, current, mode)
        result = current[node.name]
        # A later operator may write into this memory.
        keep = changing and isinstance(result, torch.Tensor)
        values[node.name] = result.clone() if keep else result
        if keep and places is not None:
            places[node.name] = place_of(result)
    for name in graph.outputs if changing else ():
        # A result is what its memory holds in the end: others may have written into a view of it.
        if name is not None and isinstance(final := current.get(name), torch.Tensor):
            values[name] = final.clone()


def _own(tensor: torch.Tensor, mode: ExactMode) -> torch.Tensor:
    """A copy, into whose memory only this rank writes."""
    copy = tensor.clone()
    if copy.is_floating_point():
        mode.note(copy)
    return copy


def _message(
    graph: Graph, node: Node, mesh: RankMesh, current: Tensors
) -> tuple[torch.Tensor, int, Any]:
    other, (first, *_) = peer(node), node.args
    tensor = current.get(first.name) if isinstance(first, Ref) else None
    if other is None or not 0 <= other < mesh.size or not isinstance(tensor, torch.Tensor):
        raise GraphError(f"{graph.at(node)}: {node} names no tensor or no rank of the mesh")
    return tensor, other, node.args[2]


def _write(node: Node, current: Tensors) -> None:
    (first, *_) = node.args
    assert isinstance(first, Ref)
    current[first.name].copy_(current[node.name])
    current[node.name] = current[first.name]


def _meeting(rank: int, graph: Graph, node: Node, mesh: RankMesh, current: Tensors) -> Meeting:
    name, stated = group_name(graph, node)
    group = mesh.group_of(name, rank)
    if group is None:
        raise CannotSayError(
            f"{graph.at(node)}: {node} uses the process group {shown(name)}; say which axes of the "
            f"mesh {dict(mesh.axes)} it spans: `groups: {{{shown(name)!r}: AXIS}}`"
        )
    if stated is not None and stated != len(group):
        raise GraphError(
            f"{graph.at(node)}: {node} states a group of {stated} ranks, but the group "
            f"{shown(name)} of rank {rank} has the {len(group)} ranks {list(group)}"
        )
    args = tuple(argument_of(each, current) for each in node.args)
    if not args or not isinstance(args[0], torch.Tensor):
        raise GraphError(f"{graph.at(node)}: {node} communicates no tensor")
    return Meeting(rank, graph, node, args, group, name)
