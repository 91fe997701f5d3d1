"""Random values of a sequential graph's inputs, which depend on nothing but a seed and a name."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

import torch

from pytest_trainsafe.core.untrusted import shown
from pytest_trainsafe.judges.refine.errors import CannotSayError
from pytest_trainsafe.judges.refine.evaluate.constants import is_float, whole_dtype
from pytest_trainsafe.judges.refine.graphs.graph import Graph, Node, Ref

#: Operators that hand on the integers they are given, changed by a bound at most.
HANDED_ON = frozenset(
    f"aten.{name}"
    for name in ("_to_copy", "clone", "view", "_unsafe_view", "reshape", "transpose", "t",
                 "permute", "unsqueeze", "squeeze", "expand", "slice", "detach", "alias", "sub",
                 "select", "where", "index_put", "masked_fill", "contiguous", "to", "copy")
)  # fmt: skip
#: Operators that take indices, with the places of the tensor and of the indices.
_INDEXING = {
    "aten.embedding": (0, 1),
    "aten.index": (0, 1),
    "aten._unsafe_index": (0, 1),
    "aten.index_put": (0, 1),
    "aten.gather": (0, 2),
    "aten.scatter": (0, 2),
    "aten.scatter_add": (0, 2),
    "aten.index_select": (0, 2),
    "aten.index_add": (0, 2),
    "aten.nll_loss_forward": (0, 1),
    "aten.cross_entropy_loss": (0, 1),
}
#: How the names of operators begin that are no kernels of a project; a graph's own have no dot.
_OF_TORCH = ("aten.", "prims.", "_c10d_functional", "c10d", "_operator.", "operator.", "math.")
#: The bound of integers that select from nothing that the graph shows, such as masks and positions.
_UNKNOWN = 11
#: What these are drawn from: often a mask's 0 and 1, else a number that is not its own square.
_OFTEN = torch.tensor([*[0] * 5, *[1] * 5, *range(_UNKNOWN)])


def floats(name: str, shape: Sequence[int], seed: int) -> torch.Tensor:
    """Normal random doubles."""
    return torch.randn(tuple(shape), dtype=torch.float64, generator=_generator(name, seed))


def value_of(
    node: Node, below: Mapping[str, int], seed: int, marks: Sequence[int] = ()
) -> torch.Tensor:
    """The value of a sequential input: random floats, masks, or integers below a bound.

    Each of `marks` below the bound is among the integers, unless these would be more than half.
    """
    if node.shape is None:
        raise CannotSayError(
            f"the input {shown(node.name)} has no shape in the graph; symbolic sizes need numbers"
        )
    if is_float(node):
        return floats(node.name, node.shape, seed)
    bound = 2 if node.dtype == "b8" else below.get(node.name, _UNKNOWN)
    generator = _generator(node.name, seed)
    if bound == _UNKNOWN:
        drawn = _OFTEN[torch.randint(len(_OFTEN), node.shape, generator=generator)]
    else:
        drawn = torch.randint(bound, node.shape, generator=generator)
    fitting = torch.tensor([each for each in marks if 0 <= each < bound], dtype=drawn.dtype)
    count = min(len(fitting), drawn.numel() // 2)
    places = torch.randperm(drawn.numel(), generator=generator)[:count]
    drawn.view(-1)[places] = fitting[torch.randperm(len(fitting), generator=generator)[:count]]
    return drawn.to(whole_dtype(node))


def _generator(name: str, seed: int) -> torch.Generator:
    digest = hashlib.blake2b(f"{seed}:{name}".encode(), digest_size=7).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest, "big"))


def bounds(graph: Graph) -> dict[str, int]:
    """The bounds of integer inputs: the smallest dimension that one of them selects from.

    A project's own kernel may select by an integer from the rows of any tensor that it is given.
    `_UNKNOWN` for an input that selects from nothing that the graph shows.
    """
    found: dict[str, int] = {}
    origin: dict[str, set[str]] = {}
    for node in graph.nodes:
        if node in graph.inputs and not is_float(node) and node.dtype != "b8":
            origin[node.name] = {node.name}
        elif node.short in HANDED_ON:
            origin[node.name] = set().union(*(origin.get(each, set()) for each in node.inputs))
        else:
            for name, size in _selected(graph, node):
                for each in origin.get(name, ()):
                    found[each] = min(size, found.get(each, size))
    names = [each.name for each in graph.inputs if not is_float(each) and each.dtype != "b8"]
    return {name: found.get(name, _UNKNOWN) for name in names}


def _selected(graph: Graph, node: Node) -> list[tuple[str, int]]:
    """The tensors of indices of a node, each with the size of the dimension it selects from."""
    if node.short not in _INDEXING:
        return _of_kernel(graph, node)
    tensor, index = _INDEXING[node.short]
    if len(node.args) <= index:
        return []
    source, indices = node.args[tensor], node.args[index]
    shape = graph.by_name[source.name].shape if isinstance(source, Ref) else None
    if not shape:
        return []
    if isinstance(indices, tuple):
        return [
            (each.name, shape[dim])
            for dim, each in enumerate(indices[: len(shape)])
            if isinstance(each, Ref)
        ]
    if not isinstance(indices, Ref):
        return []
    dim = node.args[1] if index == 2 else (-1 if "loss" in node.short else 0)
    if not isinstance(dim, int) or not -len(shape) <= dim < len(shape):
        return []
    if "cross_entropy" in node.short or "nll" in node.short:
        dim = min(1, len(shape) - 1)
    return [(indices.name, shape[dim])]


def _of_kernel(graph: Graph, node: Node) -> list[tuple[str, int]]:
    """The tensors of integers that a kernel is given, each with the fewest rows of the others."""
    if "." not in node.short or node.short.startswith(_OF_TORCH):
        return []
    given = [graph.by_name[name] for name in dict.fromkeys(node.inputs)]
    rows = [each.shape[0] for each in given if is_float(each) and each.shape]
    return [(each.name, min(rows)) for each in given if rows and not is_float(each)]
