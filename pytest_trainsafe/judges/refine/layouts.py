"""How the ranks of an axis hold each tensor, by rules for operators: at full shapes, in no time.

A layout is an explanation and an early warning, and decides nothing: the rules know one program
for all ranks, take an operator by its name, and do not see what values do.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch

from pytest_trainsafe.judges.refine.evaluate.collectives import collective, group_name, waits
from pytest_trainsafe.judges.refine.evaluate.operators import torch_operator
from pytest_trainsafe.judges.refine.graphs.graph import INPUT, Graph, Node
from pytest_trainsafe.judges.refine.problem.problem import Problem
from pytest_trainsafe.judges.refine.relations.relation import Relation
from pytest_trainsafe.judges.refine.sizes.operators import Operands


@dataclass(frozen=True)
class Layout:
    """What one axis does with a tensor: "whole" on each rank, "cut", or terms of a "sum".

    Of a cut tensor, `dim` is the dimension, of which `outer` blocks are cut alike, as batch and
    heads are that are one dimension; "unknown" if no rule says it.
    """

    kind: str
    dim: int = 0
    outer: int = 1

    def __str__(self) -> str:
        if self.kind != "cut":
            return {"sum": "a sum", "whole": "whole"}.get(self.kind, self.kind)
        return f"cut along {self.dim}" + (f" in {self.outer} blocks" if self.outer > 1 else "")


WHOLE, SUM, UNKNOWN = Layout("whole"), Layout("sum"), Layout("unknown")
_Shape = tuple[int, ...]


@dataclass
class Layouts:
    """The layouts along one axis of the tensors of the first rank, and what looks wrong."""

    axis: str
    of: dict[str, Layout] = field(default_factory=dict)
    warnings: list[tuple[str, str]] = field(default_factory=list)


def layouts(problem: Problem) -> list[Layouts]:
    """The layouts along each axis of the mesh that has several ranks."""
    axes = [axis for axis, size in problem.mesh.axes.items() if size > 1]
    return [_Reader(problem, axis).read() for axis in axes]


class _Reader:
    def __init__(self, problem: Problem, axis: str) -> None:
        self.problem, self.axis = problem, axis
        self.graph = problem.ranks[0]
        self.found = Layouts(axis)

    def read(self) -> Layouts:
        given = {
            name: _of_relation(relation, self.axis)
            for relation in self.problem.inputs.values()
            for name in relation.names
        }
        for node in self.graph.nodes:
            if node.name in given:
                layout = given[node.name]
            elif node.operator == INPUT:
                layout = UNKNOWN
            else:
                layout = self._of_node(node)
            self.found.of[node.name] = layout
        return self.found

    def _of_node(self, node: Node) -> Layout:
        taken = [self.found.of[name] for name in node.inputs]
        operands = Operands(self.graph, node, self._dims)
        made_of = [self.found.of[name] for name in operands.names]
        if waits(node) and taken:
            return taken[0]
        if collective(node) is not None and taken:
            return self._of_collective(node, taken[0])
        if operands.short == "copy" and taken:
            return taken[-1]
        if all(each == WHOLE for each in made_of):
            return self._of_whole(node)
        if UNKNOWN in made_of or node.shape is None:
            return UNKNOWN
        rule = _RULES.get(operands.short)
        if rule is None and _pointwise(operands):
            rule = _by_elements
        try:
            layout, warning = _NO if rule is None else rule(_Call(self, operands, node))
        except (IndexError, ValueError, ZeroDivisionError):  # A form that the rule does not know.
            layout, warning = _NO
        if warning:
            self.found.warnings.append((node.name, warning))
        return layout

    def _of_whole(self, node: Node) -> Layout:
        """Operators alike make the same of the same; slices that differ may cut it."""
        others = [graph.by_name.get(node.name) for graph in self.problem.ranks]
        if all(each is not None and each.args == node.args for each in others):
            return WHOLE
        if node.short == "aten.slice" and node.shape is not None and len(node.args) > 3:
            dim, start, length = node.args[1], node.args[2], 0
            if isinstance(dim, int) and start == 0:
                length = node.shape[dim]
            place = list(self.problem.mesh.axes).index(self.axis)
            starts = [
                (each.args[2], rank[place] * length)
                for each, rank in zip(others, self.problem.mesh.coordinates, strict=True)
                if each is not None
            ]
            if length and isinstance(dim, int) and all(one == other for one, other in starts):
                return Layout("cut", dim)
        return UNKNOWN

    def _dims(self, name: str) -> None:
        return None

    def _of_collective(self, node: Node, taken: Layout) -> Layout:
        name, _ = group_name(self.graph, node)
        group = self.problem.mesh.group_of(name, 0) or ()
        place = list(self.problem.mesh.axes).index(self.axis)
        if len({self.problem.mesh.coordinates[rank][place] for rank in group}) == 1:
            return taken  # It is along other axes.
        kind = collective(node) or ""
        reduces = kind.startswith(("all_reduce", "reduce_scatter"))
        sums = reduces and "sum" in node.args
        if sums and taken == WHOLE:
            self._warn(node, f"adds {node.inputs[0]}, which is whole on each rank of {self.axis}")
        elif reduces and taken.kind == "cut":
            self._warn(node, f"reduces {node.inputs[0]}, which is {taken} over {self.axis}")
        if kind.startswith(("all_reduce", "all_gather", "broadcast")):
            return WHOLE  # All ranks get the same.
        return Layout("cut") if sums and taken in (SUM, WHOLE) else UNKNOWN

    def _warn(self, node: Node, text: str) -> None:
        self.found.warnings.append((node.name, text))


def _of_relation(relation: Relation, axis: str) -> Layout:
    layout = WHOLE
    for step in relation.steps:
        plain = not (step.parts or step.order or step.zigzag)
        if step.axis == axis and step.kind == "concat" and plain:
            layout = Layout("cut", step.dim, step.by)
        elif step.axis == axis and step.kind == "concat" and step.parts:
            layout = Layout("cut", step.dim)  # Of fused parts; who splits them has each part cut.
        elif step.axis == axis:
            layout = SUM if step.kind == "sum" else UNKNOWN
        elif step.kind in ("permute", "slice"):
            return UNKNOWN
    return layout


class _Call:
    """What a rule sees: the operator's arguments with their layouts and shapes."""

    def __init__(self, reader: _Reader, operands: Operands, node: Node) -> None:
        self.operands, self.axis = operands, reader.axis
        self.node, self.result = node, node.shape or ()
        nodes = reader.graph.by_name
        self.nodes = nodes
        self.names = [name for name in operands.names if nodes[name].shape is not None]
        self.layouts = [reader.found.of[name] for name in self.names]
        self.shapes: list[_Shape] = [nodes[name].shape or () for name in self.names]

    def said(self, place: int) -> str:
        layout = self.layouts[place]
        over = "" if layout == WHOLE else f" over {self.axis}"
        return f"{self.names[place]}, which is {layout}{over}"


#: Operators whose results are the same along a dimension.
_SPREAD = ("aten.expand", "aten.full", "aten.ones", "aten.zeros")
Outcome = tuple[Layout, str]
_NO: Outcome = (UNKNOWN, "")


def _pointwise(operands: Operands) -> bool:
    found = torch_operator(operands.node.operator)
    return found is not None and torch.Tag.pointwise in getattr(found, "tags", ())


def _by_elements(call: _Call) -> Outcome:
    """Cut dimensions must correspond; a sum may be added to a sum, or be scaled."""
    if SUM in call.layouts:
        return _with_sums(call)
    cuts = set()
    for layout, shape in zip(call.layouts, call.shapes, strict=True):
        if layout.kind == "cut":
            cuts.add(Layout("cut", layout.dim + len(call.result) - len(shape), layout.outer))
    if len(cuts) != 1:
        return UNKNOWN, f"takes {call.said(0)}, and {call.said(-1)}" if len(cuts) > 1 else ""
    (cut,) = cuts
    for place, (layout, shape) in enumerate(zip(call.layouts, call.shapes, strict=True)):
        dim = cut.dim - len(call.result) + len(shape)
        spread = call.nodes[call.names[place]].short in _SPREAD
        if layout == WHOLE and dim >= 0 and shape[dim] > 1 and not spread:
            return UNKNOWN, f"takes {call.said(place)}, beside what is {cut} over {call.axis}"
    return cut, ""


def _with_sums(call: _Call) -> Outcome:
    short, layouts_ = call.operands.short, call.layouts
    place = layouts_.index(SUM)
    if short in ("add", "sub") and all(each == SUM for each in layouts_) and len(layouts_) > 1:
        return SUM, ""
    scaled = short == "mul" or (short in ("div", "neg") and place == 0)
    if scaled and layouts_.count(SUM) == 1 and all(each in (SUM, WHOLE) for each in layouts_):
        return SUM, ""
    others = [number for number, each in enumerate(layouts_) if each != SUM]
    beside = f", and {call.said(others[0])}" if others else ""
    return UNKNOWN, f"takes {call.said(place)}{beside}: an all-reduce may be missing"


def _moved(call: _Call) -> Outcome:
    """A view: what is cut is found behind as many elements as before it."""
    layout, shape = call.layouts[0], call.shapes[0]
    if layout.kind != "cut":
        return layout, ""
    before = math.prod(shape[: layout.dim]) * layout.outer
    seen = 1
    for dim, size in enumerate(call.result):
        if seen <= before < seen * size and before % seen == 0 and size % (before // seen) == 0:
            return Layout("cut", dim, before // seen), ""
        seen *= size
    return _NO


def _turned(call: _Call) -> Outcome:
    layout, count = call.layouts[0], len(call.shapes[0])
    if layout.kind != "cut":
        return layout, ""
    order = list(range(count))
    if call.operands.short == "t":
        order.reverse()
    elif call.operands.short == "transpose":
        a, b = call.operands.number(1) % count, call.operands.number(2) % count
        order[a], order[b] = b, a
    else:
        order = [dim % count for dim in call.operands.numbers(1)]
    return Layout("cut", order.index(layout.dim), layout.outer), ""


def _product(call: _Call) -> Outcome:
    """Products of matrices, perhaps added to a first tensor: a cut inner dimension leaves a sum."""
    *added, (a, left), (b, right) = zip(call.layouts, call.shapes, strict=True)
    if SUM in (a, b):
        other = b if a == SUM else a
        found: Outcome = (SUM, "") if other == WHOLE else _NO
    else:
        rows, inner = len(left) - 2, len(left) - 1
        if (a, b) == (Layout("cut", inner, a.outer), Layout("cut", len(right) - 2, a.outer)):
            found = (SUM, "")
        elif a.kind == "cut" and a.dim == rows and b == WHOLE:
            found = (Layout("cut", len(call.result) - 2, a.outer), "")
        elif b.kind == "cut" and b.dim == len(right) - 1 and a == WHOLE:
            found = (Layout("cut", len(call.result) - 1, b.outer), "")
        elif a == b and a.kind == "cut" and a.dim < rows:
            found = (a, "")
        else:
            found = (UNKNOWN, f"multiplies {call.said(-2)}, by {call.said(-1)}")
    for layout, _ in added:
        if found[0] == SUM and layout == WHOLE:
            return UNKNOWN, f"adds {call.said(0)}, to a sum over {call.axis}: once on each rank"
    return found


def _reduced(call: _Call) -> Outcome:
    layout, shape = call.layouts[0], call.shapes[0]
    if layout == SUM:
        return (SUM, "") if call.operands.short in ("sum", "mean") else _with_sums(call)
    dims = [dim % len(shape) for dim in call.operands.numbers(1, "dim")] or list(range(len(shape)))
    if layout.dim in dims:
        return (SUM, "") if call.operands.short == "sum" else _NO
    if len(call.result) == len(shape):
        return layout, ""
    return Layout("cut", layout.dim - sum(dim < layout.dim for dim in dims), layout.outer), ""


def _along(call: _Call) -> Outcome:
    """An operator along one dimension, such as softmax, which must not be cut."""
    layout, shape = call.layouts[0], call.shapes[0]
    if layout == SUM:
        return _with_sums(call)
    if layout.kind == "cut" and layout.dim == call.operands.number(1, "dim", -1) % len(shape):
        return UNKNOWN, f"goes along a dimension of {call.said(0)}"
    return layout, ""


def _norm(call: _Call) -> Outcome:
    layout, shape = call.layouts[0], call.shapes[0]
    if layout == SUM:
        return _with_sums(call)
    count = len(call.operands.numbers(1)) or 1
    if layout.kind == "cut" and layout.dim >= len(shape) - count:
        return UNKNOWN, f"normalizes a dimension of {call.said(0)}"
    return layout, ""


def _embedding(call: _Call) -> Outcome:
    weight, indices = call.layouts[:2]
    if weight == WHOLE and indices.kind == "cut":
        return indices, ""
    if indices == WHOLE and weight.kind == "cut" and weight.dim == 1:
        return Layout("cut", len(call.result) - 1), ""
    return _NO


def _split(call: _Call) -> Outcome:
    """Parts of a fused tensor, each of which is cut, or of another dimension."""
    return call.layouts[0], ""


def _expanded(call: _Call) -> Outcome:
    layout = call.layouts[0]
    more = len(call.result) - len(call.shapes[0])
    return replace(layout, dim=layout.dim + more) if layout.kind == "cut" else layout, ""


def _joined(call: _Call) -> Outcome:
    """Tensors that are cut alike, along another dimension."""
    layout = call.layouts[0]
    along = call.operands.number(1, "dim") % max(len(call.result), 1)
    alike = all(each == layout for each in call.layouts)
    return (layout, "") if alike and (layout.kind != "cut" or layout.dim != along) else _NO


Rule = Callable[[_Call], Outcome]
_RULES: Mapping[str, Rule] = {
    **dict.fromkeys(("view", "reshape", "_unsafe_view", "unsqueeze", "squeeze", "flatten"), _moved),
    **dict.fromkeys(("t", "transpose", "permute"), _turned),
    **dict.fromkeys(("mm", "addmm", "bmm", "baddbmm"), _product),
    **dict.fromkeys(("sum", "mean", "amax", "amin"), _reduced),
    **dict.fromkeys(("_softmax", "_log_softmax", "cumsum"), _along),
    **dict.fromkeys(("native_layer_norm", "_fused_rms_norm"), _norm),
    **dict.fromkeys(("clone", "detach", "alias", "_to_copy", "contiguous", "native_dropout"),
                    lambda call: (call.layouts[0], "")),
    **dict.fromkeys(("split", "split_with_sizes", "chunk", "slice"), _split),
    "embedding": _embedding, "expand": _expanded, "cat": _joined,
    "apex.fused_layer_norm_affine_fwd": _norm,
}  # fmt: skip


def lines(found: Sequence[Layouts], graph: Graph) -> Iterator[str]:
    """The layouts of a rank's tensors, one in each line, and then the warnings."""
    for node in graph.nodes:
        said = [f"{each.of[node.name]} over {each.axis}" for each in found]
        yield f"{node.name}: {', '.join(said)}"
    for each in found:
        for name, text in each.warnings:
            yield f"warning: {graph.by_name[name]} {text}"
