"""Who wrote last what an operator reads: a write through a view changes a tensor made before.

Filled by the evaluation of a graph; read where a refutation follows tensors back.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch

from pytest_trainsafe.judges.refine.graphs.graph import Graph, Node

#: By an operator and one of its inputs: the tensors that hold what it reads there, if others wrote
#: into the input's memory.  By a result and its own name: those that hold it when the graph ends.
Reads = Mapping[str, Mapping[str, Sequence[str]]]


@dataclass(frozen=True)
class Place:
    """The memory in which a tensor lies; two tensors of one `storage` may share elements."""

    storage: int
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]

    def elements(self) -> torch.Tensor:
        """The places of its elements in the storage."""
        last = sum((size - 1) * step for size, step in zip(self.shape, self.stride, strict=True))
        every = torch.arange(self.offset + last + 1)
        return every.as_strided(self.shape, self.stride, self.offset).reshape(-1)


def place_of(tensor: torch.Tensor) -> Place:
    return Place(
        tensor.untyped_storage().data_ptr(),
        int(tensor.storage_offset()),
        tuple(tensor.shape),
        tensor.stride(),
    )


def writes(node: Node) -> bool:
    """Whether an operator's result is the memory of its first argument, into which it writes."""
    return node.short.endswith("_")


def reads(graph: Graph, places: Mapping[str, Place]) -> Reads:
    """What operators and results read that was written after the tensor was made."""
    made = {node.name: number for number, node in enumerate(graph.nodes)}
    written: dict[int, list[Node]] = {}
    found: dict[str, dict[str, tuple[str, ...]]] = {}

    def read(by: str, name: str) -> None:
        place = places.get(name)
        if place is None or place.storage not in written or 0 in place.shape:
            return
        later = [each for each in written[place.storage] if made[each.name] > made[name]]
        holding = tuple(_holding(name, place, later, places)) if later else (name,)
        if holding != (name,):
            found.setdefault(by, {})[name] = holding

    for node in graph.nodes:
        for each in node.inputs:
            read(node.name, each)
        if writes(node) and node.name in places:
            written.setdefault(places[node.name].storage, []).append(node)
    for name in graph.outputs:
        if name is not None:
            read(name, name)
    return found


def _holding(
    name: str, place: Place, later: Sequence[Node], places: Mapping[str, Place]
) -> Iterator[str]:
    """The last writers of a tensor's elements, and the tensor itself if it keeps some."""
    left = place.elements()
    for node in reversed(later):
        hit = torch.isin(left, places[node.name].elements())
        if hit.any():
            yield node.name
            left = left[~hit]
        if not left.numel():
            return
    yield name
