"""Layouts as a user declares them, in YAML, in the style of TTrace's Figure 3.

Called by the recorder for modules and the loss, and by `align/resolve.py` for parameters.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from pytest_trainsafe.align.annotation_entries import (
    AnnotationError,
    Entries,
    OutputEntry,
    parse,
)
from pytest_trainsafe.align.annotation_text import load, read_text
from pytest_trainsafe.align.layout import Layout, Partial, Placement, Scaled, Shard, ZigZag
from pytest_trainsafe.align.patterns import LastMatch
from pytest_trainsafe.sweep.point import Point


class Annotations:
    """The entries of one annotation file.

    A pattern matches a dotted name or any dotted suffix of it; the last entry that matches
    wins, whole.  Layouts are for one Point: an axis of size 1 gives no placement.
    """

    def __init__(self, entries: Entries, origin: str = "annotations") -> None:
        self.entries = entries
        self.origin = origin
        self.file: Path | None = None
        self._parameters = LastMatch("parameters", entries.parameters)
        self._modules = LastMatch("modules", entries.modules)

    @classmethod
    def empty(cls) -> Annotations:
        """No annotations: every name has none."""
        return cls(Entries())

    @classmethod
    def of(cls, data: Mapping[str, Any], origin: str = "annotations") -> Annotations:
        """Annotations from a mapping of the file's form."""
        return cls(parse(data, origin), origin)

    @classmethod
    def read(cls, path: Path) -> Annotations:
        """Annotations from a YAML file.  Raises AnnotationError."""
        found = cls.of_text(read_text(Path(path)), str(path))
        found.file = Path(path)
        return found

    @classmethod
    def of_text(cls, text: str, origin: str) -> Annotations:
        """Annotations from the text of a YAML file.  Raises AnnotationError."""
        return cls.of(load(text, origin), origin)

    def over(self, given: Mapping[str, Any]) -> Annotations:
        """These annotations, and what is `given` where they say nothing."""
        below, own = parse(given, "what the framework says"), self.entries
        joined = replace(
            own,
            loss=own.loss or below.loss,
            mean_gradients=own.mean_gradients or below.mean_gradients,
            parameters=(*below.parameters, *own.parameters),
            modules=(*below.modules, *own.modules),
        )
        found = Annotations(joined, self.origin)
        found.file = self.file
        return found

    def told(self) -> str:
        """What a later proposal must know of them, as JSON: their file, and its cp_order."""
        file = os.path.abspath(self.file) if self.file else ""
        return json.dumps({"file": file, "cp_order": self.entries.cp_order or ""})

    def parameter(self, name: str, point: Point, ndim: int) -> tuple[Layout, str] | None:
        """The layout of a parameter and the entry it came from, or None without an entry."""
        found = self._parameters.find(name)
        if found is None:
            return None
        entry, source = found
        layout: list[Placement] = []
        if entry.tp_dim is not None and point.size("tp") > 1:
            dim = self._dim(entry.tp_dim, ndim, source, name)
            layout.append(Shard(dim, "tp", entry.blocks))
        return tuple(layout), source

    def sequence_parallel(self, name: str) -> bool:
        """Whether a parameter's gradient is a partial sum over tp where sp is on."""
        found = self._parameters.find(name)
        return found is not None and found[0].sequence_parallel

    def expert_parallel(self, name: str) -> bool:
        """Whether a parameter is an expert's, held by some of the dp and cp ranks at ep > 1."""
        found = self._parameters.find(name)
        return found is not None and found[0].expert_parallel

    def decision(self, name: str) -> bool:
        """Whether what a module yields is a decision: indices that it chose by scores."""
        return self._whole_output(name).decision

    def local(self, name: str, point: Point) -> bool:
        """Whether what a module yields has no logical counterpart at this Point."""
        return any(int(point.get(axis, 1)) > 1 for axis in self._whole_output(name).local)

    def module(
        self, name: str, output_name: str, point: Point, ndim: int, gradient: bool = False
    ) -> tuple[Layout, str] | None:
        """The layout of a module's output, or of the gradient that reaches it.

        `output_name` is "output", "output.0", "output.logits"; an entry for "output" covers
        them all.  A gradient has the entry "output_grad"; without one it is laid out as the
        output is, but whole where the output is partial (the gradient of a sum reaches each
        of its terms).
        """
        found = self._modules.find(name)
        if found is None:
            return None
        outputs, source = found
        if gradient:
            own = _output(outputs, output_name.replace("output", "output_grad", 1))
            if own is not None:
                return self._output_layout(own, name, point, ndim, source), source
        entry = _output(outputs, output_name) or OutputEntry()
        layout = self._output_layout(entry, name, point, ndim, source)
        if gradient:
            layout = tuple(p for p in layout if not isinstance(p, Partial))
        return layout, source

    def cuts_batches(self) -> str:
        """The first entry that says dp ranks each have a slice of a micro-batch, or ""."""
        for pattern, outputs in self.entries.modules:
            if any(entry.dp_dim is not None for entry in outputs.values()):
                return f"modules: {pattern}"
        return ""

    def loss(self, point: Point) -> tuple[Layout, str] | None:
        """The layout of the loss, or None without an entry."""
        entry = self.entries.loss
        if entry is None:
            return None
        terms = [Partial(axis) for axis in entry.partial if point.size(axis) > 1]
        means = [Partial(axis, "avg") for axis in entry.mean if point.size(axis) > 1]
        return (*terms, *means), "loss"

    def unreduced(self, point: Point) -> Layout:
        """What every gradient is besides, before the reduction: a multiple, where that averages."""
        axes = self.entries.mean_gradients
        return tuple(Scaled(axis) for axis in axes if point.size(axis) > 1)

    def unmatched(self, parameters: Iterable[str], modules: Iterable[str]) -> list[str]:
        """The entries whose pattern matches none of the names, as "modules: linear_qkv"."""
        return [
            *self._parameters.unmatched(parameters),
            *self._modules.unmatched(modules),
        ]

    def _whole_output(self, name: str) -> OutputEntry:
        """The entry of a module's output as a whole, empty without one."""
        found = self._modules.find(name)
        entry = found[0].get("output") if found is not None else None
        return entry or OutputEntry()

    def _output_layout(
        self, entry: OutputEntry, name: str, point: Point, ndim: int, source: str
    ) -> Layout:
        layout: list[Placement] = []
        if point.size("dp") > 1 and entry.dp_dim is not None:
            layout.append(Shard(self._dim(entry.dp_dim, ndim, source, name), "dp"))
        if point.size("cp") > 1:
            if entry.cp_dim is not None:
                dim = self._dim(entry.cp_dim, ndim, source, name)
                zigzag = self.entries.cp_order == "zigzag"
                layout.append(ZigZag(dim, "cp") if zigzag else Shard(dim, "cp"))
            elif entry.cp_partial:
                layout.append(Partial("cp"))
        if point.size("tp") > 1:
            if entry.tp_dim is not None:
                dim = self._dim(entry.tp_dim, ndim, source, name)
                layout.append(Shard(dim, "tp", entry.blocks))
            elif entry.sp_dim is not None and point.get("sp", False):
                layout.append(Shard(self._dim(entry.sp_dim, ndim, source, name), "tp"))
            elif entry.tp_partial:
                layout.append(Partial("tp"))
        return tuple(layout)

    def _dim(self, dim: int, ndim: int, source: str, name: str) -> int:
        if not -ndim <= dim < ndim:
            raise AnnotationError(
                f"{self.origin}: `{source}` cuts dimension {dim} of {name or 'the root module'!r}, "
                f"which has {ndim} dimension{'s' * (ndim != 1)}. Correct it, or add a later entry "
                f"for {name!r}: the last entry that matches wins."
            )
        return dim % ndim


def _output(outputs: Mapping[str, OutputEntry], name: str) -> OutputEntry | None:
    """The entry for an output: its own, else that of the level above ("output")."""
    while name not in outputs and "." in name:
        name = name.rpartition(".")[0]
    return outputs.get(name)
