"""The recorder's adapter for torch's own data parallel wrappers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from torch import nn

from pytest_trainsafe.frameworks.torch_native.fsdp import UnshardedGradients
from pytest_trainsafe.frameworks.torch_native.wrappers import Wrappers
from pytest_trainsafe.record.adapter import Adapter, GradientHook, Watched


class TorchNative(Adapter):
    """The adapter for torch's own wrappers: DDP, `replicate` and FSDP2.

    Finds the axes over which they average gradients, and hooks FSDP2's unsharded parameters.
    """

    def find_wrappers(self, watched: Watched) -> None:
        """Finds DistributedDataParallel, `replicate` and FSDP2 in and around the model."""
        wrappers = Wrappers(watched.point, watched.annotations, watched.writer)
        wrappers.attach(watched.parts, watched.hooks)

    def listen_to_unsharded(
        self,
        modules: Iterable[nn.Module],
        parameters: Mapping[str, nn.Parameter],
        hook: GradientHook,
    ) -> None:
        """Hooks the gradients of FSDP2's unsharded parameters."""
        UnshardedGradients(parameters, hook).attach(modules)
