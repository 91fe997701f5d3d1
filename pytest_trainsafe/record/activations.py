"""Records what flows between modules: every output, and the gradient that reaches it.

Forward hooks and tensor hooks only.  Module backward hooks fail on outputs modified in place
and are silent for outputs that are not plain tensors; a hook on the output tensor is right in
each of these cases.  Values are cloned, since later in-place operations would change them.
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import nn

from pytest_trainsafe.align.annotations import Annotations
from pytest_trainsafe.align.layout import Layout
from pytest_trainsafe.record.clock import Clock
from pytest_trainsafe.record.outputs import replace_tensors, tensors_in
from pytest_trainsafe.record.perturb import Noise
from pytest_trainsafe.record.spec import RunSpec
from pytest_trainsafe.trace.schema import Kind, TensorId
from pytest_trainsafe.trace.writer import RankWriter


class ActivationRecorder:
    """Hooks the modules of one model; `names` maps each module to its canonical name."""

    def __init__(
        self,
        spec: RunSpec,
        clock: Clock,
        writer: RankWriter,
        annotations: Annotations,
        noise: Noise | None,
    ) -> None:
        self.spec = spec
        self.clock = clock
        self.writer = writer
        self.annotations = annotations
        self.noise = noise

    def attach(self, names: dict[nn.Module, str]) -> None:
        """Install the hooks.  Must happen before the first `torch.compile` call of a module."""
        for module, name in names.items():
            leaf = next(module.children(), None) is None
            if self.noise is not None and leaf:
                module.register_forward_hook(self._perturb(name))
            if any(fnmatchcase(name, pattern) for pattern in self.spec.modules):
                module.register_forward_hook(self._record(name))

    def _record(self, name: str) -> Any:
        def hook(module: nn.Module, args: object, output: object) -> None:
            if self.clock.microbatch is None:
                return
            call, recomputing = self.clock.call(name)
            for place, tensor in tensors_in(output):
                if not recomputing:
                    self._add("activation", name, place, call, tensor)
                if tensor.requires_grad and self.spec.records("activation_grad"):
                    tensor.register_hook(self._on_grad(name, place, call))

        return hook

    def _on_grad(self, name: str, place: str, call: int) -> Any:
        def hook(grad: torch.Tensor) -> None:
            if self.clock.microbatch is not None:
                self._add("activation_grad", name, place, call, grad)

        return hook

    def _add(self, kind: Kind, name: str, place: str, call: int, tensor: torch.Tensor) -> None:
        if not self.spec.records(kind):
            return
        step, microbatch = self.clock.step, self.clock.microbatch
        assert step is not None
        where = TensorId(step, microbatch, kind, name, place, call)
        layout, source = self._layout(name, place, tensor)
        self.writer.add_tensor(where, _local(tensor).detach().clone(), layout, source)

    def _layout(self, name: str, place: str, tensor: torch.Tensor) -> tuple[Layout, str]:
        if _is_dtensor(tensor):
            from pytest_trainsafe.align.dtensor import dtensor_layout

            return dtensor_layout(tensor), "dtensor"
        found = self.annotations.module(name, place, self.spec.at, tensor.ndim)
        return found if found is not None else ((), "default")

    def _perturb(self, name: str) -> Any:
        assert self.noise is not None
        noise = self.noise
        calls = Clock()

        def perturbed(place: str, tensor: torch.Tensor) -> torch.Tensor:
            if not tensor.is_floating_point():
                return tensor
            number, _ = calls.call(f"{name}.{place}")
            key = f"{self.clock.step}/{self.clock.microbatch}/{name}/{place}/{number}"
            # Added rather than replaced, so that the graph behind the output stays.
            noisy = tensor + (noise(key, tensor) - tensor.detach())
            if noisy.requires_grad:
                noisy.register_hook(lambda grad: noise(f"{key}/grad", grad))
            return noisy

        def hook(module: nn.Module, args: object, output: object) -> object:
            return replace_tensors(output, perturbed)

        return hook


def _is_dtensor(tensor: torch.Tensor) -> bool:
    return type(tensor).__name__ == "DTensor" and hasattr(tensor, "placements")


def _local(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to_local() if _is_dtensor(tensor) else tensor  # type: ignore[no-any-return, operator]
