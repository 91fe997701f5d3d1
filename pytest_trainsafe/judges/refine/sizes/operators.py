"""What each operator says of the lengths of its tensors: which dimensions are one.

Operators without a rule here make all dimensions of equal size in their tensors one, which keeps
more than needed and never less.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import torch

from pytest_trainsafe.judges.refine.evaluate.collectives import collective, group_name, peer, waits
from pytest_trainsafe.judges.refine.evaluate.operators import torch_operator
from pytest_trainsafe.judges.refine.graphs.graph import GETITEM, Argument, Graph, Node, Ref, leaves
from pytest_trainsafe.judges.refine.sizes.lengths import Length, Lengths

Dims = Sequence[Length]


class Operands:
    """A node with the dimensions of what it takes and gives; of a tuple's item, of the tuple.

    `tensors` has the dimensions of each tensor argument in order, `given` those by the argument's
    place, and `item` is the place in the tuple.
    """

    def __init__(self, graph: Graph, node: Node, of: Callable[[str], Dims | None]) -> None:
        self.graph, self.item = graph, 0
        self.result = of(node.name) or ()
        while node.operator == GETITEM:
            (whole,) = node.inputs
            self.item = node.args[1] if isinstance(node.args[1], int) else 0
            node = graph.by_name[whole]
        self.node = node
        self.of = of
        refs = [each for each in leaves((node.args, dict(node.kwargs))) if isinstance(each, Ref)]
        self.names = [each.name for each in refs]
        self.tensors = [dims for name in self.names if (dims := of(name)) is not None]

    @property
    def short(self) -> str:
        """The operator's name without its name space and overload, and without a last "_"."""
        return self.node.short.removeprefix("aten.").removesuffix("_")

    def dims(self, place: int) -> Dims:
        """The dimensions of the tensor at a place of the arguments; none for another argument."""
        each = self.node.args[place] if place < len(self.node.args) else None
        return (self.of(each.name) or ()) if isinstance(each, Ref) else ()

    def number(self, place: int, name: str = "", otherwise: int = 0) -> int:
        """An argument that is an integer."""
        found: Argument = self.node.kwargs.get(name)
        if place < len(self.node.args):
            found = self.node.args[place]
        return found if type(found) is int else otherwise

    def numbers(self, place: int, name: str = "") -> tuple[int, ...]:
        """An argument that is one integer or a list of them; () if it is missing or None."""
        found: Argument = self.node.kwargs.get(name)
        if place < len(self.node.args):
            found = self.node.args[place]
        each = found if isinstance(found, tuple) else (found,)
        return tuple(value for value in each if type(value) is int)


def constrain(lengths: Lengths, operands: Operands) -> None:
    """Let the dimensions of a node's tensors be one where its operator says so."""
    if not operands.tensors:
        return
    rule = _RULES.get(operands.short) if operands.node.short.startswith("aten.") else None
    if collective(operands.node) is not None:
        _collective(lengths, operands)
    elif rule is not None:
        rule(lengths, operands)
    elif _by_elements(operands):
        _broadcast(lengths, operands)
    else:
        _by_size(lengths, operands)


def is_kernel(node: Node) -> bool:
    """Whether a node calls a kernel outside of torch, whose schema is not known."""
    computes = bool(node.inputs) and node.operator != GETITEM
    talks = "c10d" in node.operator or peer(node) is not None
    return computes and not node.operator.startswith("aten.") and not talks


def _by_elements(operands: Operands) -> bool:
    node = operands.node
    if operands.short in _ELEMENTS or waits(node) or peer(node) is not None:
        return True
    found = torch_operator(node.operator) if node.operator.startswith("aten.") else None
    return torch.Tag.pointwise in getattr(found, "tags", ())


def _pair(lengths: Lengths, one: Dims, other: Dims) -> None:
    """Unite dimensions one by one, from the first."""
    for a, b in zip(one, other, strict=False):
        lengths.unite(a, b)


def _from_right(lengths: Lengths, one: Dims, other: Dims) -> None:
    _pair(lengths, one[::-1], other[::-1])


def _broadcast(lengths: Lengths, o: Operands) -> None:
    """By elements: the last dimensions correspond."""
    for dims in o.tensors:
        _from_right(lengths, o.result, dims)


def _by_size(lengths: Lengths, o: Operands) -> None:
    """Dimensions of equal size are one; a kernel may halve or flatten dimensions."""
    shapes = [*o.tensors, o.result]
    known: dict[int, Length] = {}
    for each in (length for dims in shapes for length in dims):
        lengths.unite(known.setdefault(each.size, each), each)
        each.root.even |= is_kernel(o.node) and each.size % 2 == 0
    if o.short in _NOT_FLATTENED:
        return
    last = {dims[-1].size: dims[-1] for dims in shapes if dims}
    for size, each in last.items():
        if size > 1 and 2 * size in last and is_kernel(o.node):
            lengths.times(2, each, last[2 * size])
    for dims in o.tensors:
        for end in range(2, len(dims) + 1):
            flat = known.get(math.prod(each.size for each in dims[:end]))
            if flat is not None:
                lengths.multiply(dims[:end], [flat])


def _view(lengths: Lengths, o: Operands) -> None:
    lengths.multiply(o.tensors[0], o.result)


def _reordered(lengths: Lengths, o: Operands) -> None:
    (source, *_), count = o.tensors, len(o.tensors[0])
    order = list(range(count))
    if o.short in ("t", "numpy_T", "mT"):
        order = order[::-1]
    elif o.short == "transpose" and count:
        a, b = o.number(1, "dim0") % count, o.number(2, "dim1") % count
        order[a], order[b] = order[b], order[a]
    elif o.short == "permute" and count:
        order = [dim % count for dim in o.numbers(1, "dims")]
    _pair(lengths, o.result, [source[dim] for dim in order])


def _matmul(lengths: Lengths, o: Operands) -> None:
    """Products of matrices, perhaps added to a first tensor, perhaps in batches."""
    *added, a, b = o.tensors
    for dims in added:
        _from_right(lengths, o.result, dims)
    if o.short == "linear":
        _linear(lengths, o)
        return
    if len(a) > 1 and len(b) > 1:
        lengths.unite(a[-1], b[-2])
        _from_right(lengths, o.result[:-2], a[:-2])
        _from_right(lengths, o.result[:-2], b[:-2])
        if len(o.result) > 1:
            lengths.unite(o.result[-2], a[-2])
            lengths.unite(o.result[-1], b[-1])
    else:
        _by_size(lengths, o)


def _linear(lengths: Lengths, o: Operands) -> None:
    x, weight = o.tensors[:2]
    _pair(lengths, o.result[:-1], x[:-1])
    lengths.unite(x[-1], weight[-1])
    lengths.unite(o.result[-1], weight[0])


def _reduced(lengths: Lengths, o: Operands) -> None:
    """The dimensions that a reduction leaves."""
    source = o.tensors[0]
    dims = {dim % len(source) for dim in o.numbers(_REDUCED[o.short], "dim")} if source else set()
    if not dims:
        dims = set(range(len(source)))
    left = [each for number, each in enumerate(source) if number not in dims]
    _pair(lengths, o.result, source if len(o.result) == len(source) else left)


def _joined(lengths: Lengths, o: Operands) -> None:
    if not o.result:
        return
    dim = o.number(1, "dim") % len(o.result)
    for dims in o.tensors:
        _pair(lengths, o.result[:dim], dims[:dim])
        _pair(lengths, o.result[dim + 1 :], dims[dim + 1 :])
    lengths.sum([dims[dim] for dims in o.tensors if len(dims) == len(o.result)], o.result[dim])


def _stacked(lengths: Lengths, o: Operands) -> None:
    dim = o.number(1, "dim") % len(o.result)
    left = [each for number, each in enumerate(o.result) if number != dim]
    if o.result:
        o.result[dim].root.fixed = True  # It counts the tensors.
    for dims in o.tensors:
        _pair(lengths, left, dims)


def _except(lengths: Lengths, one: Dims, other: Dims, dim: int) -> None:
    for number, (a, b) in enumerate(zip(one, other, strict=False)):
        if number != dim:
            lengths.unite(a, b)


def _sliced(lengths: Lengths, o: Operands) -> None:
    """A part of a tensor; in a backward, and where it is written, of the result."""
    first = {"slice": 1, "narrow": 1}.get(o.short, 2)
    part, whole = (o.result, o.tensors[0]) if first == 1 else (o.tensors[-1], o.result)
    if o.short == "slice_scatter":
        _pair(lengths, o.result, o.tensors[0])
    if not whole or o.number(first + 3, "step", 1) != 1:
        _by_size(lengths, o)
        return
    dim = o.number(first, "dim") % len(whole)
    size = whole[dim].size
    start, end = o.number(first + 1, "start"), o.number(first + 2, "end", size)
    if o.short == "narrow":
        end = start % size + o.number(first + 2, "length")
    _except(lengths, part, whole, dim)
    start, end = (each + size if each < 0 else each for each in (start, end))
    found = lengths.between(whole[dim], max(start, 0), min(end, size))
    if dim < len(part):
        lengths.sum(found, part[dim])


def _split(lengths: Lengths, o: Operands) -> None:
    """One item of a split; its dimension is the segment that begins where the item does."""
    source = o.tensors[0]
    if not source or not o.result:
        return
    dim = o.number(2, "dim") % len(source)
    _except(lengths, o.result, source, dim)
    sizes = o.numbers(1)
    if o.short == "chunk":
        each = -(-source[dim].size // max(sizes[0], 1)) if sizes else source[dim].size
        start = o.item * each
    else:
        start = sum(sizes[: o.item]) if len(sizes) > 1 else o.item * (sizes[0] if sizes else 0)
    found = lengths.between(source[dim], start, start + o.result[dim].size)
    lengths.sum(found, o.result[dim])


def _selected(lengths: Lengths, o: Operands) -> None:
    """A dimension is gone; in a backward, it comes."""
    back = o.short.endswith("backward")
    short, long = (o.tensors[0], o.result) if back else (o.result, o.tensors[0])
    if long:
        dim = o.number(2 if back else 1, "dim") % len(long)
        _pair(lengths, short, [each for number, each in enumerate(long) if number != dim])


def _embedding(lengths: Lengths, o: Operands) -> None:
    if o.short == "embedding":
        weight, indices = o.tensors[:2]
        _pair(lengths, o.result, [*indices, *weight[1:]])
        counted = _counted(o, o.names[1])
        if counted:  # A table of positions keeps a row for each.
            found = lengths.between(weight[0], 0, counted[0].size)
            lengths.sum(found, counted[0])
    else:
        grad, indices = o.tensors[:2]
        _pair(lengths, grad, indices)
        lengths.unite(o.result[-1], grad[-1])


def _counted(o: Operands, name: str) -> Dims:
    """The length of the numbers from 0 on of which indices are made; none for other indices."""
    node = o.graph.by_name[name]
    while node.short in _MOVING and node.inputs:
        node = o.graph.by_name[node.inputs[0]]
    whole = node.args[:1] == (0,) if len(node.args) > 1 else True
    return o.of(node.name) or () if node.short == "aten.arange" and whole else ()


def _index_select(lengths: Lengths, o: Operands) -> None:
    source, indices = o.tensors[:2]
    dim = o.number(1, "dim") % max(len(source), 1)
    _except(lengths, o.result, source, dim)
    if indices and dim < len(o.result):
        lengths.unite(o.result[dim], indices[0])


def _gathered(lengths: Lengths, o: Operands) -> None:
    """Indices along one dimension; the others correspond where they are equally long."""
    source = o.tensors[0]
    dim = o.number(1, "dim") % max(len(source), 1)
    for dims in o.tensors[1:]:
        _except(lengths, source, dims, dim)
        _pair(lengths, o.tensors[1], dims)
    _pair(lengths, o.result, o.tensors[1] if o.short == "gather" else source)


def _indexed(lengths: Lengths, o: Operands) -> None:
    """Indices of the first dimensions by integers: their dimensions come first in the result."""
    indices = o.node.args[1] if len(o.node.args) > 1 else ()
    names = [each.name for each in leaves(indices) if isinstance(each, Ref)]
    whole = all(o.graph.by_name[name].dtype != "b8" for name in names)
    if not isinstance(indices, tuple) or len(names) < len(indices) or not whole:
        _by_size(lengths, o)
        return
    source, *each = o.tensors
    count = max(map(len, each[: len(names)]), default=0)
    rest = source[len(names) :]
    values = o.result if o.short == "index" else (each[-1] if len(each) > len(names) else ())
    for dims in each[: len(names)]:
        _from_right(lengths, values[:count], dims)
    if o.short == "index":
        _pair(lengths, o.result[count:], rest)
    else:
        _pair(lengths, o.result, source)
        _from_right(lengths, values, rest)


def _masked(lengths: Lengths, o: Operands) -> None:
    """A tensor written under a mask of its first dimensions, or by indices."""
    source, *others = o.tensors
    names = [each.name for each in leaves(o.node.args[1:2]) if isinstance(each, Ref)]
    if len(names) != 1 or o.graph.by_name[names[0]].dtype != "b8":
        _indexed(lengths, o)
        return
    _pair(lengths, o.result, source)
    _pair(lengths, source, others[0])


def _padded(lengths: Lengths, o: Operands) -> None:
    source, amounts = o.tensors[0], o.numbers(1, "pad")
    for number, (whole, part) in enumerate(zip(o.result[::-1], source[::-1], strict=False)):
        before, after = (*amounts[2 * number : 2 * number + 2], 0, 0)[:2]
        if before < 0 or after < 0:
            _by_size(lengths, o)
        else:
            lengths.sum([Length(before), part, Length(after)], whole)


def _normalized(lengths: Lengths, o: Operands) -> None:
    """Layer norms: the result has the dimensions of the input, the statistics the first ones."""
    source = o.tensors[0]
    _pair(lengths, o.result, source) if len(o.result) == len(source) else None
    for dims in o.tensors[1:]:
        if len(dims) == len(source):
            _pair(lengths, dims, source)
        else:
            _from_right(lengths, dims, source)
    if len(o.result) < len(source):
        _from_right(lengths, o.result, source)


def _collective(lengths: Lengths, o: Operands) -> None:
    """Gathers multiply the first dimension by the number of ranks, and scatters divide it."""
    _, count = group_name(o.graph, o.node)
    source = o.tensors[0]
    _pair(lengths, o.result[1:], source[1:])
    if not o.result or not source:
        return
    small, large = sorted((source[0], o.result[0]), key=lambda each: each.size)
    if count and large.size == small.size * count:
        lengths.times(count, small, large)
    else:
        lengths.unite(small, large)


def _nothing(lengths: Lengths, o: Operands) -> None:
    """A scalar, or a tensor whose dimensions are its arguments."""


Rule = Callable[[Lengths, Operands], None]

_REDUCED = {
    **dict.fromkeys(("sum", "mean", "amax", "amin", "any", "all", "logsumexp", "var", "std",
                     "var_mean", "argmax", "argmin", "max", "min", "prod", "count_nonzero"), 1),
    "linalg_vector_norm": 2,
}  # fmt: skip
#: Operators whose integers are those that they are given.
_MOVING = frozenset(
    f"aten.{name}"
    for name in ("view", "reshape", "unsqueeze", "squeeze", "expand", "clone", "detach", "alias",
                 "_to_copy", "t", "transpose", "permute", "slice")
)  # fmt: skip
_NOT_FLATTENED = frozenset({"mm", "bmm", "matmul"})
#: Operators by elements that torch does not mark as such, and those along one dimension.
_ELEMENTS = frozenset((
    "_to_copy", "to", "clone", "alias", "detach", "copy", "contiguous", "lift_fresh",
    "lift_fresh_copy", "expand", "expand_as", "full_like", "zeros_like", "ones_like", "empty_like",
    "rand_like", "randn_like", "native_dropout", "native_dropout_backward", "dropout",
    "_softmax", "_log_softmax", "softmax", "log_softmax", "_softmax_backward_data",
    "_log_softmax_backward_data", "cumsum", "cumprod", "flip", "roll", "triu", "tril", "sort",
    "broadcast_to", "where", "masked_fill", "fill", "zero", "bernoulli",
))  # fmt: skip
_RULES: Mapping[str, Rule] = {
    **dict.fromkeys(("view", "reshape", "_unsafe_view", "flatten", "unflatten", "squeeze",
                     "unsqueeze", "_reshape_alias", "view_as", "ravel"), _view),
    **dict.fromkeys(("t", "numpy_T", "mT", "transpose", "permute"), _reordered),
    **dict.fromkeys(("mm", "addmm", "bmm", "baddbmm", "matmul"), _matmul),
    "linear": _linear,
    **dict.fromkeys(_REDUCED, _reduced),
    "cat": _joined, "stack": _stacked,
    **dict.fromkeys(("slice", "narrow", "slice_scatter", "slice_backward"), _sliced),
    **dict.fromkeys(("split", "split_with_sizes", "chunk", "unsafe_split", "unsafe_chunk",
                     "unsafe_split_with_sizes"), _split),
    **dict.fromkeys(("select", "unbind", "select_backward"), _selected),
    "embedding": _embedding, "embedding_dense_backward": _embedding,
    "index_select": _index_select,
    "gather": _gathered, "scatter": _gathered, "scatter_add": _gathered,
    "index": _indexed, "_unsafe_index": _indexed,
    "index_put": _masked, "_unsafe_index_put": _masked, "_index_put_impl": _masked,
    "constant_pad_nd": _padded,
    "native_layer_norm": _normalized, "native_layer_norm_backward": _normalized,
    "_fused_rms_norm": _normalized,
    **dict.fromkeys(("new_zeros", "new_ones", "new_empty", "new_full", "_assert_async",
                     "_local_scalar_dense", "sym_size", "new_empty_strided"), _nothing),
}  # fmt: skip
