"""Data parallel wrappers: the one that runs now, communication hooks, states and divisors.

Needs of DistributedDataParallel `_get_active_ddp_module` and the attribute `_comm_hooks`; of FSDP2
`_get_fsdp_state` of a module and `_fsdp_param_groups` of its state, instead of which torch 2.10 has
`_fsdp_param_group`; of torch.distributed._composable `contract.STATE_KEY`, and `_ReplicateState` of
`replicate` and `replicate_with_fsdp` with its `_ddp`, `_init_kwargs` and `_comm_hook_args`; and
`_State` of torch.distributed._composable_state.  torch 2.10 to 2.14 have all other names.

Without them, gradients count as not averaged by the wrapper, or as averaged over all of its ranks.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from pytest_trainsafe.compat.private import Capability

ACTIVE = Capability("DistributedDataParallel around a watched module is not seen")
HOOKS = Capability("communication hooks of DistributedDataParallel are taken for averaging ones")
DIVISORS = Capability("divisors that a program sets for FSDP2 are not seen")
REPLICATED = Capability("modules to which `replicate` was applied are not found")
STATES = Capability("lines that apply `fully_shard` and `replicate` are not recorded")

_COMPOSABLE = "torch.distributed._composable"

_active: Any = ACTIVE.of("torch.nn.parallel", "DistributedDataParallel._get_active_ddp_module")

#: The class from which `fully_shard` and `replicate` derive the states of modules.
ComposableState: Any = STATES.of("torch.distributed._composable_state", "_State")

#: Functions of torch that wrap a model, by the class of their state.
APPLIED_BY = {"FSDPState": "fully_shard", "_ReplicateState": "replicate"}


class Reducer(NamedTuple):
    """The process group over which a module's gradients are averaged, and the hooks that do it."""

    group: Any
    hooks: tuple[Any, ...]


def active_wrapper() -> DistributedDataParallel | None:
    """The DistributedDataParallel whose forward runs now; None if there is none."""
    around: DistributedDataParallel | None = None if _active is None else _active()
    return around


def reducer_of_wrapper(wrapper: DistributedDataParallel) -> Reducer:
    """The reducer of a DistributedDataParallel.

    The hooks lack those that the C++ reducer provides; all of those average.
    """
    hooks = getattr(wrapper, "_comm_hooks", None)
    if hooks is None:
        HOOKS.lacks("DistributedDataParallel._comm_hooks")
    return Reducer(wrapper.process_group, tuple(hook for hook, _ in hooks or ()))


def divisors_of(module: Any) -> Iterator[float | None]:
    """Yields the factor that `set_gradient_divide_factor` set for each parameter group of FSDP2.

    Yields None for the default factor.
    """
    find = getattr(module, "_get_fsdp_state", None)
    state = None if find is None else find()
    groups = getattr(state, "_fsdp_param_groups", None)
    if groups is None:
        groups = [getattr(state, "_fsdp_param_group", None)]
        if state is None or not hasattr(state, "_fsdp_param_group"):
            DIVISORS.lacks("FSDPState._fsdp_param_groups")
    for group in groups:
        if group is not None:
            yield getattr(group, "gradient_divide_factor", None)


def reducer_of_replicate(module: nn.Module) -> Reducer | None:
    """The reducer of a module with the older `replicate`; None for any other module.

    Before the first forward, the reducer is derived from the arguments of `replicate`.
    """
    state: Any = _state_of(module, f"{_COMPOSABLE}.replicate")
    if state is None:
        return None
    made = getattr(state, "_ddp", None)
    if made is not None:
        return reducer_of_wrapper(made)
    hooks = tuple(_hook(*args, **kwargs) for args, kwargs in state._comm_hook_args)
    mesh = state._init_kwargs.get("device_mesh")
    group = state._init_kwargs.get("process_group")
    if group is None:
        group = dist.group.WORLD if mesh is None else mesh.get_group(mesh_dim=0)
    return Reducer(group, hooks)


def is_replicated(module: nn.Module) -> bool:
    """Whether the newer `replicate` was applied to this FSDP2 module."""
    return _state_of(module, f"{_COMPOSABLE}.replicate_with_fsdp") is not None


def _state_of(module: nn.Module, where: str) -> object | None:
    """The state that a form of `replicate` keeps for a module; None if there is none.

    `where` is the name of torch's module with this form of `replicate`; it is not imported here.
    torch's composable functions keep their state in the `__dict__` of the model's module.
    """
    if where not in sys.modules:  # then it was applied to no module
        return None
    cls = REPLICATED.of(where, "_ReplicateState")
    key = REPLICATED.of(f"{_COMPOSABLE}.contract", "STATE_KEY")
    kept = vars(module).get(str(key)) if isinstance(cls, type) else None
    states = kept.values() if isinstance(kept, dict) else ()
    return next((state for state in states if isinstance(state, cls)), None)


def _hook(state: object = None, hook: Any = None, **_: object) -> Any:
    """Takes the arguments of `register_comm_hook`, and returns the hook among them."""
    return hook
