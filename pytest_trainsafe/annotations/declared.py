"""Layouts that a user declares in YAML, in the style of TTrace's Figure 3.

Called by the recorder for modules and the loss, and by `record/model/parameter_layout.py` for
parameters.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pytest_trainsafe.annotations.entries import (
    AnnotationError,
    Decision,
    Entries,
    OutputEntry,
    ParameterEntry,
)
from pytest_trainsafe.annotations.lines import place_of, with_line
from pytest_trainsafe.annotations.parse import parse
from pytest_trainsafe.annotations.patterns import LastMatch
from pytest_trainsafe.annotations.placed import placed
from pytest_trainsafe.annotations.text import load, read_text
from pytest_trainsafe.core.indices import nested
from pytest_trainsafe.core.layout import (
    Layout,
    Partial,
    Placement,
    Scaled,
    Shard,
    Split,
    Striped,
    ZigZag,
)
from pytest_trainsafe.core.point import Point
from pytest_trainsafe.core.tensor_id import gradient_place
from pytest_trainsafe.trace.facts import Annotations as AnnotationsFact

#: How cp ranks split a sequence, by `cp_order`.
_OVER_CP: Mapping[str, type[Split]] = {
    "zigzag": ZigZag,
    "contiguous": Shard,
    "striped": Striped,
}


class Annotations:
    """The entries of one annotation file.

    A pattern matches a dotted name or any dotted suffix of it.  The last entry that matches
    applies, and earlier ones are ignored.  A layout is made for one Point: an axis of size 1 gives
    no placement.
    """

    def __init__(self, entries: Entries, origin: str = "annotations") -> None:
        self.entries = entries
        self.origin = origin
        self.file: Path | None = None
        self.given = entries != Entries()
        #: The rank that asks, for entries with a function.
        self.rank = 0
        self._averaged: tuple[str, ...] = ()
        self.model = ""
        self._parameters = LastMatch("parameters", entries.parameters)
        self._modules = LastMatch("modules", entries.modules)
        self._buffers = LastMatch("buffers", entries.buffers)

    @classmethod
    def empty(cls) -> Annotations:
        """Annotations without entries."""
        return cls(Entries())

    @classmethod
    def of(
        cls, data: Mapping[str, Any], origin: str = "annotations", model: str = ""
    ) -> Annotations:
        """Annotations from a mapping in the form of a file.

        If the mapping has a section `models`, `model` is the name of the model whose entries apply.
        """
        found = cls(parse(data, origin, model), origin)
        found.model = model
        return found

    @classmethod
    def read(cls, path: Path) -> Annotations:
        """Annotations from a YAML file, or those of one model in it: `layouts.yaml#llama`.

        Raises AnnotationError if the file cannot be read or is invalid.
        """
        model = ""
        if "#" in path.name and not path.exists():
            name, _, model = path.name.rpartition("#")
            path = path.with_name(name) if name else path
        text = read_text(path)
        try:
            found = cls.of_text(text, str(path), model)
        except AnnotationError as error:
            raise AnnotationError(with_line(str(error), path, text, model)) from None
        found.file = path
        return found

    @classmethod
    def of_text(cls, text: str, origin: str, model: str = "") -> Annotations:
        """Annotations from the text of a YAML file.  Raises AnnotationError if it is invalid."""
        return cls.of(load(text, origin), origin, model)

    def over(self, given: Mapping[str, Any]) -> Annotations:
        """Returns a copy of `self` with the annotations of `given` added.

        Where an annotation of `self` and one of `given` conflict, that of `self` is used.
        """
        below, own = parse(given, "the annotations of the framework"), self.entries
        joined = replace(
            own,
            loss=own.loss or below.loss,
            mean_gradients=(
                below.mean_gradients if own.mean_gradients is None else own.mean_gradients
            ),
            parameters=(*below.parameters, *own.parameters),
            modules=(*below.modules, *own.modules),
            buffers=(*below.buffers, *own.buffers),
        )
        found = Annotations(joined, self.origin)
        found.file, found.model, found.given = self.file, self.model, self.given
        found.rank = self.rank
        return found

    def fact(self) -> AnnotationsFact:
        """The event that tells the judges which annotations were read.

        The event has three texts, each "" if there is none: the path of the annotation file;
        `model`, which selects entries under the file's key `models`; and `cp_order`, the order in
        which cp ranks split a sequence ("zigzag", "contiguous", "striped").  It says, too, whether
        the program gave any annotation; those of a framework do not count.
        """
        file = os.path.abspath(self.file) if self.file else ""
        order = self.entries.cp_order or ""
        return AnnotationsFact(file, order, self.model, self.given)

    def parameter(
        self, name: str, point: Point, shape: Sequence[int], axes: Sequence[str] = ("tp",)
    ) -> tuple[Layout, str] | None:
        """The layout of a parameter and the entry it comes from; None if no entry matches.

        `shape` is that of this rank's part; `axes` are the axes of tensor parallelism that split
        it, outermost first.
        """
        found = self._parameters.find(name)
        if found is None:
            return None
        entry, source = found
        if entry.slices is not None:
            return self._placed(entry, point, shape, source), source
        if entry.tp_dim is None or all(point.size(axis) == 1 for axis in axes):
            return (), source
        dim = self._dim(entry.tp_dim, len(shape), source, name)
        return nested(dim, axes, point.sizes, entry.blocks), source

    def sequence_parallel(self, name: str) -> bool:
        """Whether a parameter's gradient is a partial sum over tp if sp is on."""
        found = self._parameters.find(name)
        return found is not None and found[0].sequence_parallel

    def expert_parallel(self, name: str) -> bool:
        """Whether a parameter belongs to an expert, so that only some ranks hold it if ep > 1."""
        found = self._parameters.find(name)
        return found is not None and found[0].expert_parallel

    def expert_tp_size(self, name: str) -> int | None:
        """The number of ranks that an expert's parameter is split over, if one is declared.

        Returns None if none is declared; the parameter is then split over tp.
        """
        found = self._parameters.find(name)
        return found[0].expert_tp_size if found is not None else None

    def gradient_partial(self, name: str) -> tuple[str, ...]:
        """The axes whose ranks each compute a term of a parameter's gradient."""
        found = self._parameters.find(name)
        return found[0].gradient_partial if found is not None else ()

    def decision(self, name: str) -> Decision:
        """How a module makes a decision, which is a choice by scores, such as that of a router.

        Returns "output" if the module returns the chosen indices, "topk" if it calls topk or argmax
        in its forward, and "" if it makes no decision.
        """
        return self._outputs(name).get("output", OutputEntry()).decision

    def local(self, name: str, point: Point) -> tuple[str, ...]:
        """The key paths of outputs of a module, or of gradients, that have no logical counterpart.

        The key path "output" stands for all outputs and their gradients, "output.0" for one
        tensor and its gradient, "output_grad" and "output_grad.0" for gradients alone.
        """
        return tuple(
            key_path
            for key_path, entry in self._outputs(name).items()
            if any(in_use(axis, point) for axis in entry.local)
        )

    def permuted(self, name: str, output_name: str, point: Point, ndim: int) -> tuple[int, ...]:
        """The permutation that restores the dimensions of an output; () if none is needed.

        Layouts count dimensions in the restored order.  Raises AnnotationError if the output
        has another number of dimensions, or two axes declare different permutations.
        """
        entry = _output(self._outputs(name), output_name)
        if entry is None or not entry.permuted:
            return ()
        orders = {axis: order for axis, order in entry.permuted if in_use(axis, point)}
        found = set(orders.values())
        if not found:
            return ()
        where = f"{self.origin}: the entry of {name or 'the root module'!r} for {output_name}"
        if len(found) > 1:
            raise AnnotationError(
                f"{where} has `permuted` with different orders for {' and '.join(orders)}, which "
                "are used together at this Point; give these axes the same order"
            )
        order = found.pop()
        if len(order) != ndim:
            raise AnnotationError(
                f"{where} has `permuted: {list(order)}`, but the output has {ndim} dimensions; "
                "name each dimension once"
            )
        return order

    def module(
        self,
        name: str,
        flow: str,
        point: Point,
        shape: Sequence[int],
        gradient: bool = False,
    ) -> tuple[Layout, str] | None:
        """The layout of a module's output or input, or of its gradient.

        `flow` is "output", "output.0", "output.logits" or "input.0", for example; an entry for
        "output" covers all parts of the output.  `shape` is that of this rank's part.  A gradient
        uses the entry "output_grad" or "input_grad".  If there is none, it has the layout of the
        tensor, but without partial sums: the gradient of a sum reaches each of its terms whole.
        Returns None if no entry matches the module.
        """
        found = self._modules.find(name)
        if found is None:
            return None
        outputs, source = found
        if gradient:
            own = _output(outputs, gradient_place(flow))
            if own is not None:
                return self._output_layout(own, name, point, shape, source), source
        entry = _output(outputs, flow) or OutputEntry()
        layout = self._output_layout(entry, name, point, shape, source)
        if gradient:
            layout = tuple(p for p in layout if not isinstance(p, Partial))
        return layout, source

    def takes_inputs(self, name: str) -> bool:
        """Whether an entry asks for the inputs of a module, or for their gradients."""
        return any(key.split(".", 1)[0] in ("input", "input_grad") for key in self._outputs(name))

    def buffer(self, name: str, point: Point, shape: Sequence[int]) -> tuple[Layout, str] | None:
        """The layout of a buffer and the entry it comes from; None if no entry matches."""
        found = self._buffers.find(name)
        if found is None:
            return None
        entry, source = found
        return self._output_layout(entry, name, point, shape, source), source

    def local_buffer(self, name: str, point: Point) -> bool:
        """Whether a buffer has no logical counterpart at this Point."""
        found = self._buffers.find(name)
        return found is not None and _is_local(found[0], point)

    def cuts_batches(self) -> str:
        """The first entry that splits micro-batches over dp ranks; "" if there is none."""
        for pattern, outputs in self.entries.modules:
            if any(entry.dp_dim is not None for entry in outputs.values()):
                return f"modules: {pattern}"
        return ""

    def loss(self, point: Point) -> tuple[Layout, str] | None:
        """The layout of the loss and the entry's name; None if the file does not declare it."""
        entry = self.entries.loss
        if entry is None:
            return None
        terms = [Partial(axis) for axis in entry.partial if point.size(axis) > 1]
        means = [Partial(axis, "avg") for axis in entry.mean if point.size(axis) > 1]
        return (*terms, *means), "loss"

    def unreduced(self, point: Point) -> Layout:
        """The placements to add to a gradient's layout before a reduction averages the gradients.

        Returns `Scaled(axis)` for each axis of size > 1 over which the reduction averages: until
        then, a rank's gradient is that of the whole step multiplied by the size of the axis.
        """
        axes = self.entries.mean_gradients
        if axes is None:
            axes = self._averaged
        return tuple(Scaled(axis) for axis in axes if point.size(axis) > 1)

    def averaged_by_wrapper(self, axes: tuple[str, ...]) -> None:
        """Declares that gradients are averaged over these axes, unless the file says otherwise.

        Called late, because a wrapper that averages is often found only in the model's first
        forward.
        """
        self._averaged = axes

    def unmatched(
        self, parameters: Iterable[str], modules: Iterable[str], buffers: Iterable[str] = ()
    ) -> list[str]:
        """The entries whose pattern matches none of the names, as "modules: linear_qkv".

        Optional entries are excluded.
        """
        unmatched = [
            *self._parameters.unmatched(parameters),
            *self._modules.unmatched(modules),
            *self._buffers.unmatched(buffers),
        ]
        return [entry for entry in unmatched if entry not in self.entries.optional]

    def _outputs(self, name: str) -> Mapping[str, OutputEntry]:
        """Maps the key paths of a module's outputs and inputs to their entries; may be empty."""
        found = self._modules.find(name)
        return found[0] if found is not None else {}

    def _output_layout(
        self, entry: OutputEntry, name: str, point: Point, shape: Sequence[int], source: str
    ) -> Layout:
        ndim = len(shape)
        layout: list[Placement] = [*self._placed(entry, point, shape, source)]
        if point.size("dp") > 1 and entry.dp_dim is not None:
            layout.append(Shard(self._dim(entry.dp_dim, ndim, source, name), "dp"))
        if point.size("cp") > 1:
            if entry.cp_dim is not None:
                dim = self._dim(entry.cp_dim, ndim, source, name)
                layout.append(_OVER_CP[self.entries.cp_order or "contiguous"](dim, "cp"))
            elif entry.cp_partial:
                layout.append(Partial("cp"))
        if point.size("tp") > 1:
            if entry.tp_dim is not None:
                dim = self._dim(entry.tp_dim, ndim, source, name)
                layout.append(Shard(dim, "tp", entry.blocks))
            elif entry.sp_dim is not None and point.get("sp", False):
                layout.append(Shard(self._dim(entry.sp_dim, ndim, source, name), "tp"))
            elif entry.tp_partial or (entry.sp_partial and point.get("sp", False)):
                layout.append(Partial("tp"))
        return tuple(layout)

    def _placed(
        self, entry: ParameterEntry | OutputEntry, point: Point, shape: Sequence[int], source: str
    ) -> Layout:
        """The layout that the entry's function gives; () without one, or if no axis is in use."""
        axes = tuple(axis for axis in entry.axes if point.size(axis) > 1)
        if entry.slices is None or not axes:
            return ()
        at, where = point.coordinates(self.rank), f"{self.origin}: `{source}`"
        partial = (
            bool(entry.gradient_partial)
            if isinstance(entry, ParameterEntry)
            else entry.tp_partial or entry.sp_partial or entry.cp_partial
        )
        return placed(entry.slices, axes, at, point.sizes, shape, where, summed=partial)

    def _dim(self, dim: int, ndim: int, source: str, name: str) -> int:
        if not -ndim <= dim < ndim:
            at = self.origin if self.file is None else place_of(self.file, source, self.model)
            raise AnnotationError(
                f"{at}: `{source}` splits dimension {dim} of "
                f"{name or 'the root module'!r}, which has {ndim} "
                f"dimension{'s' * (ndim != 1)}. Correct the entry, or add a later "
                f"entry for {name!r}: the last entry that matches applies."
            )
        return dim % ndim


def _is_local(entry: OutputEntry, point: Point) -> bool:
    return any(in_use(axis, point) for axis in entry.local)


def in_use(axis: str, point: Point) -> bool:
    """Whether an axis has a size of more than 1 at a Point.

    The axis sp is in use if it is on and tp has a size of more than 1.
    """
    if axis == "sp":
        return bool(point.get("sp", False)) and point.size("tp") > 1
    return (int(point.get(axis, 1)) if axis == "vpp" else point.size(axis)) > 1


def _output(outputs: Mapping[str, OutputEntry], name: str) -> OutputEntry | None:
    """The entry for the key path `name`, or for the nearest one around it that has an entry.

    For example, "output" is around "output.0".  None if no such key path has an entry.
    """
    while name not in outputs and "." in name:
        name = name.rpartition(".")[0]
    return outputs.get(name)
