"""Several ranks of one process: torch's state of process groups for each, and its backend for all.

torch keeps the process groups of a process in one object, `distributed_c10d._world`.  A launcher
whose ranks are threads gives each rank an object of its own and exchanges it with the rank.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.distributed import distributed_c10d as c10d

#: Where torch keeps the state of one rank: a module and the names of its attributes.
WORLD = ("torch.distributed.distributed_c10d", ("_world", "_default_pg_init_method"))

#: Where DTensor keeps the state of its random numbers.
DTENSOR_RANDOM = ("torch.distributed.tensor._random", ("_rng_tracker",))

#: Where DTensor keeps its own versions of operators; `loss_parallel` adds some and removes them.
DTENSOR_OPERATORS = (
    "torch.distributed.tensor._api",
    ("DTensor._op_dispatcher._custom_op_handlers",),
)

#: What torch sets around a part of the program, such as a forward or a `with`, and around saving:
#: modules and the names of their attributes.  Another rank may run before such a part ends.
SET_AROUND = (
    ("torch.nn.parallel.distributed", ("DistributedDataParallel._active_ddp_module",)),
    ("torch.distributed.tensor._api", ("DTensor._op_dispatcher._allow_implicit_replication",)),
    (
        "torch.distributed.tensor._redistribute",
        ("_FORCE_MIN_COST_REDISTRIBUTION_PLAN", "_DISABLE_REDISTRIBUTE_TRANSFORM_OPTIMIZATION"),
    ),
    ("torch.distributed.fsdp._fully_shard._fully_shard", ("_enable_fsdp_module_new_init",)),
    ("torch.distributed._shard.api", ("_CURRENT_PROCESS_GROUP",)),
    (
        "torch.distributed.checkpoint.planner",
        (
            *("SavePlanner._cached_save_plan", "SavePlanner._cached_final_save_plan"),
            *("SavePlanner._cached_all_plans", "SavePlanner._cached_global_plan"),
            "SavePlanner._cached_metadata",
        ),
    ),
    ("torch.utils.checkpoint", ("_checkpoint_debug_enabled", "_enable_checkpoint_early_stop")),
    ("torch.autograd.graph", ("_allow_mutation_on_saved_tensors_enabled",)),
    ("torch.nn.utils.parametrize", ("_cache_enabled", "_cache")),
    ("torch.utils._device", ("CURRENT_DEVICE",)),
    (
        "torch.utils._python_dispatch",
        (
            *("_is_in_torch_dispatch_mode", "_is_in_non_infra_torch_dispatch_mode"),
            "_is_in_any_mode_without_ignore_compile_internals",
        ),
    ),
)

#: The name under which torch knows the backend.
BACKEND = "trainsafe_threads"

#: Collectives that newer releases of torch know by another name.
RENAMED = {
    "_allgather_base": "all_gather_single",
    "_reduce_scatter_base": "reduce_scatter_single",
    "alltoall_base": "all_to_all_single",
    "allgather_into_tensor_coalesced": "all_gather_single_coalesced",
    "reduce_scatter_tensor_coalesced": "reduce_scatter_single_coalesced",
}

_World: Any = c10d._World


class RankWorld(_World):  # type: ignore[misc]
    """The process groups of one rank: what `_World` keeps in global variables is kept here."""

    # Attributes of the class, so that the properties of torch's class are not those of this one.
    default_pg: Any = None
    pg_map: Any = None
    pg_names: Any = None
    pg_group_ranks: Any = None
    pg_backend_config: Any = None
    group_count: Any = None
    tags_to_pg: Any = None
    pg_to_tag: Any = None
    pg_coalesce_state: Any = None
    comms: Any = None

    def __init__(self) -> None:
        super().__init__()
        self.default_pg, self.group_count, self.comms = None, 0, []
        self.pg_map, self.pg_names, self.pg_group_ranks = {}, {}, {}
        self.pg_backend_config, self.tags_to_pg, self.pg_to_tag = {}, {}, {}
        self.pg_coalesce_state = {}


def own_properties() -> set[str]:
    """The properties of torch's `_World` that `RankWorld` does not keep for each rank."""
    found = {name for name, value in vars(_World).items() if isinstance(value, property)}
    return found - set(vars(RankWorld)) - {"pg_config_info"}  # which is made of the others


def isolate_threads(wanted: bool) -> None:
    """Whether a name denotes, in each thread, the process group that this thread registered."""
    inner: Any = torch._C._distributed_c10d
    inner._set_thread_isolation_mode(wanted)


#: The function that `register` was last called with.
_create: list[Callable[[int, str, tuple[int, ...]], Any]] = []


def _created(options: Any, _: Any) -> Any:
    members = tuple(options.global_ranks_in_group) or tuple(range(options.group_size))
    return _create[-1](options.group_rank, str(options.group_id), members)


def register(
    create: Callable[[int, str, tuple[int, ...]], Any], allowed: Callable[[str], None]
) -> None:
    """Makes torch create its process groups by `create` from now on, whatever backend is asked for.

    `create` is called with the rank in the group, the group's name and the global ranks of its
    members.  `allowed` is called with the name of the backend that the program asks for, and raises
    an exception for one that cannot be replaced.  The program sees the name that it asked for.
    """

    _create[:] = [create]
    if BACKEND.upper() not in c10d.Backend._plugins:
        c10d.Backend.register_backend(BACKEND, _created, extended_api=True, devices=["cpu"])
    original: Any = c10d._new_process_group_helper

    @functools.wraps(original)
    def helper(size: int, rank: int, ranks: Any, backend: Any, *rest: Any, **more: Any) -> Any:
        allowed(str(backend))
        made, store = original(size, rank, ranks, BACKEND, *rest, **more)
        world: Any = c10d._world
        if made in world.pg_map:
            shown = c10d.Backend.GLOO if str(backend) == "undefined" else backend
            world.pg_map[made] = (shown, world.pg_map[made][1])
            world.pg_backend_config[made] = str(c10d.BackendConfig(c10d.Backend(shown)))
        return made, store

    patched: Any = c10d
    patched._new_process_group_helper = helper
