"""What a Run may change in the values that a model computes: the interfaces that hooks call."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import nn

from pytest_trainsafe.core.layout import Layout
from pytest_trainsafe.core.tensor_id import TensorId
from pytest_trainsafe.record.hooks.module_hooks import ModuleHooks


class OutputNoise(Protocol):
    """Adds noise to the outputs of modules."""

    def output(self, name: str, value: Any, given: object = ()) -> Any:
        """The output `value` of the module `name` with noise; `given` has the module's inputs."""


class OutputRewriter(Protocol):
    """Replaces the outputs of modules, and the gradients that reach them."""

    def attach(self, names: Mapping[nn.Module, str], hooks: ModuleHooks) -> None:
        """Installs hooks of its own, after those that record."""

    def outputs(
        self, base: TensorId, output: object, recomputing: bool, passes_on: bool = False
    ) -> object:
        """The values that a module returns in place of `output`; `base` names its call."""

    def write(self, microbatch: int) -> None:
        """Writes what it holds of a micro-batch."""


class GradientReplacer(Protocol):
    """Replaces the main gradients that an optimizer's step reads."""

    def begin(self, optimizers: Collection[Any]) -> None:
        """Finds the gradients that `optimizers` are about to use."""

    def replace(
        self, where: TensorId, parameter: torch.Tensor, gradient: torch.Tensor, layout: Layout
    ) -> None:
        """Replaces the main gradient `where` of a parameter."""

    def absent(self, where: TensorId, parameter: torch.Tensor) -> None:
        """Called instead of `replace` for a parameter that has no main gradient on this rank."""


@dataclass(frozen=True, slots=True)
class Changes:
    """What a Run changes; None for what it leaves."""

    noise: OutputNoise | None = None
    rewriter: OutputRewriter | None = None
    gradients: GradientReplacer | None = None
