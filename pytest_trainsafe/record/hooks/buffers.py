"""Records buffers: before the first step, after each step, and whenever a forward changes one.

Created by the recorder.  The value of a running state (BatchNorm's statistics, a counter) depends
on the micro-batches that a rank has run so far.  So the value after each forward is recorded, and
`judges/compare/kinds/buffers.py` decides which values the reference must have too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import nn

from pytest_trainsafe.annotations.declared import Annotations
from pytest_trainsafe.compat.compiler import disabled
from pytest_trainsafe.compat.modules import own_buffers
from pytest_trainsafe.compat.tensors import version_of
from pytest_trainsafe.core.layout import Layout
from pytest_trainsafe.core.tensor_id import TensorId
from pytest_trainsafe.record.clock import Clock, in_backward
from pytest_trainsafe.record.hooks.outputs import has_values
from pytest_trainsafe.record.layouts.attributes import attribute_layout
from pytest_trainsafe.record.layouts.dtensor import is_dtensor
from pytest_trainsafe.record.tensors import local_values, own_layout, tensor_hash
from pytest_trainsafe.trace.run_spec import RunSpec
from pytest_trainsafe.trace.schema import NoteEvent
from pytest_trainsafe.trace.tensors.snapshot import TensorSnapshot
from pytest_trainsafe.trace.writer import RankWriter

#: Buffers of at least this many elements are not hashed after every forward.
LARGE = 2**18

#: A module's path and the buffer's name in the module.
Name = tuple[str, str]


class BufferRecorder:
    """Records the buffers of some modules, persistent or not.

    Buffers are looked up each time, because assigning to one replaces its tensor.
    """

    def __init__(
        self,
        spec: RunSpec,
        clock: Clock,
        writer: RankWriter,
        annotations: Annotations,
        names: Mapping[nn.Module, str],
    ) -> None:
        self.spec = spec
        self.clock = clock
        self.writer = writer
        self.annotations = annotations
        self.names = names
        self._last: dict[Name, tuple[str, TensorSnapshot]] = {}
        self._calls: Counter[tuple[int, str]] = Counter()
        self._versions: dict[Name, tuple[int, int]] = {}

    def attach(self) -> None:
        """Hooks the forwards of modules that have buffers."""
        if not self.spec.records("buffer"):
            return
        for module, name in self.names.items():
            for leaf, _ in _buffers(module):
                if self.annotations.local_buffer(_path(name, leaf), self.spec.point):
                    self.writer.add(NoteEvent("local", f"buffer {_path(name, leaf)}"))
            if next(_buffers(module), None) is not None:
                module.register_forward_hook(disabled(self._on_forward(module, name)))

    def write_all(self, step: int) -> None:
        """Writes every buffer, before the first step or at the end of a step."""
        if not self.spec.records("buffer"):
            return
        seen: set[int] = set()
        for module, name in self.names.items():
            for leaf, buffer in _buffers(module):
                if id(buffer) in seen:
                    continue  # shared by two modules: recorded under the first one's name
                seen.add(id(buffer))
                where = TensorId(step, None, "buffer", name, leaf)
                self._write(where, buffer)

    def end_step(self) -> None:
        """Resets the counts of calls, because the next step numbers its micro-batches again."""
        self._calls.clear()

    def _on_forward(self, watched: nn.Module, name: str) -> Any:
        def hook(module: nn.Module, args: object, output: object) -> None:
            step, microbatch = self.clock.step, self.clock.open
            recomputing = in_backward()
            if module is not watched or step is None or microbatch is None or recomputing:
                return
            call = self._calls[microbatch, name]
            self._calls[microbatch, name] += 1
            for leaf, buffer in _buffers(module):
                last = self._last.get((name, leaf))
                # A buffer shared by two modules is recorded under the first one's name only.
                if last is None or self._surely_same((name, leaf), buffer):
                    continue
                if last[0] != tensor_hash(buffer):
                    self._write(TensorId(step, microbatch, "buffer", name, leaf, call), buffer)

        return hook

    def _write(self, where: TensorId, buffer: torch.Tensor) -> None:
        name = where.module, where.name
        if self.annotations.local_buffer(where.path, self.spec.point):
            return
        layout, source = self._layout(where.path, buffer)
        digest, last = tensor_hash(buffer), self._last.get(name)
        if last is None or last[0] != digest:
            last = digest, self.writer.snapshot(where, local_values(buffer), layout)
            self._last[name] = last
        self.writer.add_snapshot(where, last[1], layout, source)

    def _surely_same(self, name: Name, buffer: torch.Tensor) -> bool:
        """Whether a large buffer (a mask, a table) is certainly unchanged, without hashing it.

        Small buffers are always hashed: kernels may update statistics without a new version.
        """
        if buffer.numel() < LARGE or is_dtensor(buffer):
            return False
        now = buffer.data_ptr(), version_of(buffer)
        same = self._versions.get(name) == now
        self._versions[name] = now
        return same

    def _layout(self, path: str, buffer: torch.Tensor) -> tuple[Layout, str]:
        own = own_layout(buffer, self.spec.point.sizes)
        if own is not None:
            return own
        if getattr(buffer, "tensor_model_parallel", False):
            return attribute_layout(path, buffer, self.spec.point.sizes) or (), "attribute"
        annotated = self.annotations.buffer(path, self.spec.point, buffer.shape)
        return annotated or ((), "default")


def buffer_names(names: Mapping[nn.Module, str]) -> list[str]:
    """The paths of all buffers."""
    return [path for path, _ in named_buffers(names)]


def named_buffers(names: Mapping[nn.Module, str]) -> Iterator[tuple[str, torch.Tensor]]:
    """The paths of the present buffers of modules, whose own paths are `names`, and the buffers."""
    for module, name in names.items():
        for leaf, buffer in _buffers(module):
            yield _path(name, leaf), buffer


def _buffers(module: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    for leaf, buffer in own_buffers(module).items():
        if buffer is not None and has_values(buffer):
            yield leaf, buffer


def _path(module: str, leaf: str) -> str:
    return f"{module}.{leaf}" if module else leaf
