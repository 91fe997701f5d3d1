"""Process groups by name, their members, the default store, and the flight recorder.

Needs `_get_default_group`, `_get_default_store`, `_resolve_process_group` and `_world` of
torch.distributed.distributed_c10d, whose `AllgatherOptions` save time and are not required, the
module torch.distributed._functional_collectives with its `_resolve_group_name`, and
`_dump_fr_trace_json` of torch._C._distributed_c10d.  torch 2.10 to 2.14 have all of these names.

Without the store, ranks do not exchange the shapes of shards.  Without `_world` or
`_dump_fr_trace_json`, no flight record is saved.  Without the functional collectives, those are not
recorded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import torch.distributed as dist
from torch.distributed import distributed_c10d

from pytest_trainsafe.compat.private import Capability

STORE = Capability("ranks do not exchange the shapes of shards")
NAMES = Capability("process groups are not found by their names")
RECORDER = Capability("the flight recorder of torch is not read")
FUNCTIONAL = Capability("functional collectives are not recorded")

_C10D = "torch.distributed.distributed_c10d"
_FUNCTIONAL = "torch.distributed._functional_collectives"

_default_store = STORE.of(_C10D, "_get_default_store")
_by_name = NAMES.of(_C10D, "_resolve_process_group")
_world = RECORDER.of(_C10D, "_world")

#: The process group of all ranks.  Raises ValueError if torch.distributed is not initialised.
default_group: Callable[[], Any] = NAMES.of(_C10D, "_get_default_group") or (
    lambda: dist.group.WORLD
)


def gathered(group: Any, parts: list[Any], given: Any) -> Any:
    """The Work of a gather that the caller waits for before anybody can see the results.

    So the results need not be hidden until then, nor the input be watched.
    """
    make = getattr(distributed_c10d, "AllgatherOptions", None)
    if make is None:
        return group.allgather([parts], [given])
    options = make()
    options.asyncOp = False
    return group.allgather([parts], [given], options)


def default_store() -> Any:
    """The store through which all ranks met; None if it is not known.

    torch.distributed must be initialised.
    """
    return None if _default_store is None else _default_store()


def functional_collectives() -> ModuleType | None:
    """torch's module of functional collectives, which this imports; None if there is none."""
    found: ModuleType | None = FUNCTIONAL.of(_FUNCTIONAL)
    return found


def group_named(group: Any) -> Any:
    """The process group with this name; `group` itself if it is not a name."""
    return group if _by_name is None or not isinstance(group, str) else _by_name(group)


def group_of(group: Any, tag: str) -> Any:
    """The process group that a functional collective's argument denotes: a mesh, ranks or a name.

    It is the inverse of `group_name`.  Returns `group` itself if that is not known.
    """
    if isinstance(group, dist.ProcessGroup):
        return group
    name = FUNCTIONAL.of(_FUNCTIONAL, "_resolve_group_name")
    return group if name is None else group_named(name(group, tag))


def flight_recorder() -> Callable[[bool, bool], bytes] | None:
    """The function that returns what the flight recorder has, as JSON; None if there is none.

    Its arguments say whether to include completed collectives, and whether only active ones.
    """
    dump: Callable[[bool, bool], bytes] | None = RECORDER.of(
        "torch._C._distributed_c10d", "_dump_fr_trace_json"
    )
    return dump


def known_groups() -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yields the name of each group that this rank is a member of, and its ranks in order.

    torch has no public list of groups, and the flight recorder's own list is empty for gloo.
    """
    names, members = getattr(_world, "pg_names", {}), getattr(_world, "pg_group_ranks", {})
    for group, places in list(members.items()):
        name = names.get(group)
        if name is not None:  # this rank is a member
            yield name, tuple(sorted(places, key=places.__getitem__))
