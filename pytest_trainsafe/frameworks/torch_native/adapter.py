"""The recorder's adapter for torch's own data parallelism."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from torch import nn

from pytest_trainsafe.core.point import Point
from pytest_trainsafe.frameworks.torch_native.fsdp import UnshardedGradients
from pytest_trainsafe.frameworks.torch_native.wrappers import Wrappers
from pytest_trainsafe.frameworks.torch_native.zero_redundancy import sharded_states
from pytest_trainsafe.record.adapter import Adapter, GradientHook, ParameterAdapter, Watched


class TorchNative(Adapter):
    """The adapter for DDP, `replicate`, FSDP2 and ZeroRedundancyOptimizer.

    Finds the axes over which wrappers average gradients, hooks FSDP2's unsharded parameters, and
    knows that one rank has the states of a parameter.
    """

    def find_wrappers(self, watched: Watched) -> None:
        """Finds DistributedDataParallel, `replicate` and FSDP2 in and around the model."""
        wrappers = Wrappers(watched.point, watched.annotations, watched.writer)
        wrappers.attach(watched.parts, watched.hooks)

    def parameter_adapter(self, optimizer: Any, point: Point) -> ParameterAdapter | None:
        """The parameter adapter for ZeroRedundancyOptimizer."""
        return sharded_states(optimizer, point)

    def listen_to_unsharded(
        self,
        modules: Iterable[nn.Module],
        parameters: Mapping[str, nn.Parameter],
        hook: GradientHook,
    ) -> None:
        """Hooks the gradients of FSDP2's unsharded parameters."""
        UnshardedGradients(parameters, hook).attach(modules)
