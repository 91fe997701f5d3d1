"""Finds the unsharded parameters of FSDP2 (`fully_shard`), and hooks their gradients.

Called by the parameter recorder.  A module's own parameters are shards.  For the module's forward
and backward, FSDP2 replaces them by unsharded parameters, into which autograd accumulates.  Only
the unsharded parameters show what a micro-batch adds to a gradient, because the gradient of a shard
is the output of the reduce-scatter.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import nn

from pytest_trainsafe.compat.compiler import disabled
from pytest_trainsafe.compat.modules import own_parameters
from pytest_trainsafe.record.tensors import on_gradient


class UnshardedGradients:
    """Hooks each unsharded parameter the first time that a forward uses it."""

    def __init__(
        self,
        parameters: Mapping[str, nn.Parameter],
        hook: Callable[[str], Callable[[torch.Tensor], None]],
    ) -> None:
        self._names = {id(parameter): name for name, parameter in parameters.items()}
        self._hook = hook
        self._hooked: dict[int, torch.Tensor] = {}

    def attach(self, modules: Iterable[nn.Module]) -> None:
        """Makes each FSDP2 module look for unsharded parameters when it begins its forward."""
        for module in modules:
            if is_fsdp_module(module):
                # FSDP2's own pre-hook, which unshards, runs before all others.
                module.register_forward_pre_hook(self._look(list(self._places(module))))

    def _places(self, module: nn.Module) -> Iterator[tuple[nn.Module, str, str]]:
        """Yields (holder, attribute, name) for each recorded parameter inside a module.

        `holder` is the submodule that has the parameter, `attribute` the name of the parameter in
        the holder, and `name` the name of the parameter in the model.
        """
        for holder in module.modules():
            for attribute, parameter in own_parameters(holder).items():
                name = self._names.get(id(parameter))
                if name is not None:
                    yield holder, attribute, name

    def _look(self, places: list[tuple[nn.Module, str, str]]) -> Any:
        def hook(*_: object) -> None:
            for holder, attribute, name in places:
                found = own_parameters(holder).get(attribute)
                if found is None or id(found) in self._names or id(found) in self._hooked:
                    continue
                self._hooked[id(found)] = found
                if found.requires_grad:
                    on_gradient(found, self._hook(name))

        return disabled(hook)


def is_fsdp_module(module: object) -> bool:
    """Whether `fully_shard` was applied to this module; does not import FSDP."""
    fsdp: Any = sys.modules.get("torch.distributed.fsdp")
    cls = getattr(fsdp, "FSDPModule", None)
    return isinstance(cls, type) and isinstance(module, cls)


def is_flat_fsdp(module: object) -> bool:
    """Whether this is FSDP1's wrapper, which keeps parameters in flat buffers."""
    fsdp: Any = sys.modules.get("torch.distributed.fsdp")
    cls = getattr(fsdp, "FullyShardedDataParallel", None)
    return isinstance(cls, type) and isinstance(module, cls)
