"""Finds modules to which torch's composable `replicate` was applied, and their reducers.

`replicate` comes in two forms.  The older one, in `torch.distributed._composable`, wraps the
module's parameters in a DistributedDataParallel at the first forward, and runs it in hooks of
the module.  The newer one, `replicate_with_fsdp`, is FSDP2 without sharding: a module that it
was applied to is also an FSDP2 module.  Called by `frameworks.torch_native.wrappers`.
"""

from __future__ import annotations

import sys
from typing import Any, NamedTuple

import torch.distributed as dist
from torch import nn

_OLDER = "torch.distributed._composable.replicate"
_NEWER = "torch.distributed._composable.replicate_with_fsdp"
_CONTRACT = "torch.distributed._composable.contract"


class Reducer(NamedTuple):
    """The process group over which a module's gradients are averaged, and the hooks that do it."""

    group: Any
    hooks: tuple[Any, ...]


def reducer_of(module: nn.Module) -> Reducer | None:
    """The reducer of a module with the older `replicate`; None for any other module.

    Before the first forward, the reducer is derived from the arguments of `replicate`.
    """
    state: Any = _state_of(module, _OLDER)
    if state is None:
        return None
    made = getattr(state, "_ddp", None)
    if made is not None:
        return Reducer(made.process_group, tuple(hook for hook, _ in made._comm_hooks))
    hooks = tuple(_hook(*args, **kwargs) for args, kwargs in state._comm_hook_args)
    mesh = state._init_kwargs.get("device_mesh")
    group = state._init_kwargs.get("process_group")
    if group is None:
        group = dist.group.WORLD if mesh is None else mesh.get_group(mesh_dim=0)
    return Reducer(group, hooks)


def is_replicated(module: nn.Module) -> bool:
    """Whether the newer `replicate` was applied to this FSDP2 module."""
    return _state_of(module, _NEWER) is not None


def is_made_by_replicate(wrapper: nn.Module) -> bool:
    """Whether the older `replicate` made this DistributedDataParallel, around a ParameterList."""
    return isinstance(wrapper.module, nn.ParameterList)


def _state_of(module: nn.Module, where: str) -> object | None:
    """The state that a form of `replicate` keeps for a module; None if there is none.

    `where` is the name of torch's module with this form of `replicate`; it is not imported here.
    torch's composable functions keep their state in the `__dict__` of the model's module.
    """
    cls = getattr(sys.modules.get(where), "_ReplicateState", None)
    key = getattr(sys.modules.get(_CONTRACT), "STATE_KEY", None)
    kept = vars(module).get(str(key)) if isinstance(cls, type) else None
    states = kept.values() if isinstance(kept, dict) else ()
    return next((state for state in states if isinstance(state, cls)), None)  # type: ignore[arg-type]


def _hook(state: object = None, hook: Any = None, **_: object) -> Any:
    """Takes the arguments of `register_comm_hook`, and returns the hook among them."""
    return hook
