"""Turns inferred layouts into the annotations that declare them.

Called by `propose.py`.  The result has the form of an annotation file.  One pattern covers as many
modules as possible, and no pattern matches a module with another layout.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard

from pytest_trainsafe.annotations.patterns import matches
from pytest_trainsafe.core.layout import Layout, Partial, Placement, Shard, Split, Striped, ZigZag
from pytest_trainsafe.core.tensor_id import TensorId, gradient_place, is_gradient_place

AnnotationPatch = dict[str, Any]


@dataclass(frozen=True, slots=True)
class MissingLayout:
    """A tensor whose layout is not fully declared, and the layout that explains it.

    `section` is "modules", "parameters" or "loss", `name` the name of the module or parameter, and
    `place` the key in a module's entry ("output", "output_grad.0").  `known` has the placements
    that `source` declares, and `added` the placements that were inferred.  `ndim` is the tensor's
    number of dimensions.  `order` is the permutation that restores the logical order of its
    dimensions, and `order_at` the axis that permutes them.
    """

    section: str
    name: str
    place: str
    known: Layout
    added: Layout
    source: str
    ndim: int
    order: tuple[int, ...] = ()
    order_at: str = ""

    @property
    def layout(self) -> Layout:
        """The declared and the inferred placements together; cp is the outermost."""
        return tuple(sorted((*self.known, *self.added), key=lambda p: getattr(p, "axis", "")))

    @property
    def sums(self) -> bool:
        """Whether the inferred placements contain a partial sum.

        A missing reduction causes partial sums too.
        """
        return any(isinstance(placement, Partial) for placement in self.added)


def place_of(id: TensorId) -> str:
    """The key of a module's output or input, or of its gradient, in the module's annotations.

    For example, the key of "output.0" is "output.0", and that of its gradient "output_grad.0".
    """
    return gradient_place(id.name) if id.kind == "activation_grad" else id.name


def inexpressible(need: MissingLayout, order: str) -> str:
    """Why no annotation can declare this layout, given the file's cp_order; "" if one can."""
    for placement in need.added:
        if isinstance(placement, Partial) and placement.op == "avg" and need.section != "loss":
            return "a module's output cannot be annotated as a mean over ranks"
        if isinstance(placement, Split) and placement.axis == "cp":
            found = _order(placement)
            if found != order:
                return f"the order over cp is {found}, while the annotations have cp_order: {order}"
    return ""


def cp_order(needs: Iterable[MissingLayout]) -> str:
    """The order in which most tensors are cut over cp, as in `cp_order`; "" if none is."""
    found = [
        _order(placement)
        for need in needs
        for placement in need.added
        if isinstance(placement, Split) and placement.axis == "cp"
    ]
    return max(set(found), key=found.count) if found else ""


def _order(placement: Placement) -> str:
    if isinstance(placement, Striped):
        return "striped"
    return "zigzag" if isinstance(placement, ZigZag) else "contiguous"


def wanted(
    needs: Sequence[MissingLayout],
    sources: Mapping[str, str],
    parameters: Collection[str],
    *,
    order: str,
    sp: bool,
) -> AnnotationPatch:
    """The annotations to add, in the form of an annotation file.

    `sources` maps each module that recorded an output to the origin of the output's layout
    (`TensorEvent.layout_source`), `parameters` has all parameter names, `order` is the file's
    cp_order ("" if none is needed), and `sp` says whether sequence parallelism is on.
    """
    result: AnnotationPatch = {}
    if cp_order(needs):
        result["cp_order"] = order
    for need in needs:
        if need.section == "loss":
            result["loss"] = _loss(need)
    named = {n.name: _parameter(n, sp) for n in needs if n.section == "parameters"}
    if named:
        result["parameters"] = {
            pattern: fields
            for fields, names in _grouped(named)
            for pattern in patterns(names, parameters, levels=2)
        }
    of_modules = [n for n in needs if n.section == "modules"]
    modules = _modules(of_modules, sources, _sequence_dim(of_modules) if sp else None)
    if modules:
        result["modules"] = modules
    return result


def _sequence_dim(needs: Iterable[MissingLayout]) -> int:
    """The dimension that sp splits: the one that is most often split over tp.

    The last dimension of a tensor is not counted.
    """
    dims = [
        placement.dim
        for need in needs
        for placement in need.layout
        if _may_be_sequence(placement, need.ndim)
    ]
    return max(dims, key=dims.count, default=0)


def _may_be_sequence(placement: Placement, ndim: int) -> TypeGuard[Shard]:
    return (
        isinstance(placement, Shard)
        and placement.axis == "tp"
        and placement.dim != ndim - 1
        and not placement.blocks
    )


def _modules(
    needs: Sequence[MissingLayout], sources: Mapping[str, str], sequence: int | None
) -> AnnotationPatch:
    entries: dict[str, AnnotationPatch] = {}
    additions: dict[str, AnnotationPatch] = {}
    governed: dict[str, str] = {}
    for need in needs:
        entries.setdefault(need.name, {})[need.place] = _output(need.layout, need, sequence)
        # A key beside "output" does not inherit the placements of "output".
        more_of = need.added if need.place in ("output", "input") else need.layout
        additions.setdefault(need.name, {})[need.place] = _output(more_of, need, sequence)
        governed[need.name] = need.source.removeprefix("modules: ")
    result: AnnotationPatch = {}
    # An entry is extended in place if all of its modules need the same additions.
    for pattern in dict.fromkeys(p for p in governed.values() if p != "default"):
        members = [m for m, source in sources.items() if source == f"modules: {pattern}"]
        more = [additions.get(member) for member in members]
        if more and more[0] and all(each == more[0] for each in more):
            result[pattern] = more[0]
            for member in members:
                entries.pop(member, None)
    for place, (fields, names) in enumerate(_grouped(entries)):
        bare = [m for m, source in sources.items() if source == "default"]
        common = place == 0 and len(names) > 1 and set(names) <= set(bare)
        if common and all(module in entries for module in bare):
            result = {"*": fields, **result}  # the first entry: every later one takes precedence
        else:
            result |= dict.fromkeys(patterns(names, sources), fields)
    return result


def _grouped(entries: Mapping[str, AnnotationPatch]) -> list[tuple[AnnotationPatch, list[str]]]:
    """Groups the names in `entries` that have equal entries, the largest group first.

    Returns the entry of each group, and its names.
    """
    groups: dict[str, tuple[AnnotationPatch, list[str]]] = {}
    for name, fields in entries.items():
        groups.setdefault(json.dumps(fields, sort_keys=True), (fields, []))[1].append(name)
    return sorted(groups.values(), key=lambda group: -len(group[1]))


def patterns(members: Sequence[str], every: Collection[str], levels: int = 1) -> list[str]:
    """The shortest suffix patterns that together match all members and no other name of `every`.

    A pattern has at least `levels` levels, unless the name is shorter; layer numbers become #.
    """
    left = list(members)
    found = []
    while left:
        for pattern in (*_suffix_patterns(left[0], levels), left[0]):
            matched = {name for name in every if matches(pattern, name)}
            if matched <= set(members):
                break
        found.append(pattern)
        left = [name for name in left[1:] if name not in matched]
    return found


def _suffix_patterns(name: str, levels: int) -> Iterator[str]:
    steps = name.split(".")
    for start in reversed(range(max(len(steps) - levels, 0) + 1)):
        if not steps[start].isdigit():
            yield ".".join("#" if s.isdigit() else s for s in steps[start:])


def _output(layout: Layout, need: MissingLayout, sequence: int | None) -> AnnotationPatch:
    """The fields of an entry; `sequence` is the dimension that sp cuts, None without sp."""
    fields: AnnotationPatch = {}
    cut = {p.axis: p.dim for p in need.layout if isinstance(p, Split)}
    for placement in layout:
        if isinstance(placement, Partial):
            # Such a gradient is partial only with sp on; without sp it is replicated.
            of_sp = sequence is not None and placement.axis == "tp"
            of_sp = of_sp and is_gradient_place(need.place)
            fields[f"{'sp' if of_sp else placement.axis}_partial"] = True
        elif isinstance(placement, Split) and placement.axis == "cp":
            fields["cp_dim"] = placement.dim
        elif isinstance(placement, Shard) and placement.axis == "dp":
            fields["dp_dim"] = placement.dim
        elif isinstance(placement, Shard):
            last = placement.dim == need.ndim - 1
            of_sp = sequence is not None and _may_be_sequence(placement, need.ndim)
            if of_sp and placement.dim == cut.get("cp", sequence):
                fields["sp_dim"] = placement.dim
            else:
                fields["tp_dim"] = -1 if last else placement.dim
            if placement.blocks:
                fields["blocks"] = list(placement.blocks)
    if need.order:
        fields["permuted"] = {need.order_at: list(need.order)}
    return fields


def _parameter(need: MissingLayout, sp: bool) -> AnnotationPatch:
    for placement in need.added:
        if isinstance(placement, Shard):
            blocks = {"blocks": list(placement.blocks)} if placement.blocks else {}
            return {"tp_dim": placement.dim, **blocks}
    return {"sequence_parallel": True} if sp else {"gradient_partial": ["tp"]}


def _loss(need: MissingLayout) -> AnnotationPatch:
    fields: AnnotationPatch = {}
    for placement in need.added:
        if isinstance(placement, Partial):
            key = "mean" if placement.op == "avg" else "partial"
            fields.setdefault(key, []).append(placement.axis)
    return fields
