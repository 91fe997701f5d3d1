"""Finds torch's data parallel wrappers, and the axes over which they average gradients.

Called by the recorder.  DistributedDataParallel, `replicate` and FSDP2 divide the sum of the
ranks' gradients by the number of ranks.  A program that uses them as documented computes its loss
as a mean over each rank's own samples.  So before the reduction, a rank's gradients are its share
of the whole step's gradients times the number of ranks.  accelerate and Lightning use
DistributedDataParallel and FSDP2; torchtitan also uses `replicate`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from pytest_trainsafe.annotations.declared import Annotations
from pytest_trainsafe.compat.distributed.parallel import (
    Reducer,
    active_wrapper,
    divisors_of,
    is_replicated,
    reducer_of_replicate,
    reducer_of_wrapper,
)
from pytest_trainsafe.core.point import Point
from pytest_trainsafe.frameworks.torch_native.fsdp import is_flat_fsdp, is_fsdp_module
from pytest_trainsafe.record.clock import ProgramError
from pytest_trainsafe.record.hooks.module_hooks import ModuleHooks
from pytest_trainsafe.record.layouts.dtensor import is_dtensor
from pytest_trainsafe.record.model.parts import called_parts
from pytest_trainsafe.trace.schema import NoteEvent
from pytest_trainsafe.trace.writer import RankWriter

#: torch's communication hooks that average, as DistributedDataParallel does by default.
_AVERAGING_HOOKS = frozenset(
    {
        "allreduce_hook",
        "fp16_compress_hook",
        "bf16_compress_hook",
        "powerSGD_hook",
        "batched_powerSGD_hook",
        "_reducer_allreduce_and_upcast_hook",
    }
)
_HOOKS_OF_TORCH = "torch.distributed.algorithms.ddp_comm_hooks."

#: The roles of the axes over which data parallel wrappers reduce.
_DATA_AXES = ("dp", "cp")


class Wrappers:
    """Finds wrappers in and around the recorded parts of the model, whenever a forward begins."""

    def __init__(self, point: Point, annotations: Annotations, writer: RankWriter) -> None:
        self._point = point
        self._annotations = annotations
        self._writer = writer
        self._sharded: list[tuple[nn.Module, tuple[str, ...] | None]] = []
        self._replicated: dict[int, DistributedDataParallel] = {}
        self._modules: list[nn.Module] = []
        self._reducers: list[Reducer] = []
        self._noted_axes: set[tuple[str, ...]] = set()

    def attach(self, parts: Iterable[tuple[str, nn.Module]], hooks: ModuleHooks) -> None:
        """Finds wrappers in the parts now, and around each part whenever its forward begins.

        A part may be inside a wrapper (`ddp.module`), and may be wrapped after this call.
        """
        given = list(parts)
        for _, part in given:
            for module in part.modules():
                self._modules.append(module)
                if is_flat_fsdp(module) and _size(module) > 1:
                    raise _unsupported(module)
                if is_fsdp_module(module):
                    self._sharded.append((module, _axes_of_mesh(module, self._point)))
                if isinstance(module, DistributedDataParallel):
                    self._replicated[id(module)] = module
        for name, called in called_parts(given):
            hooks.before(called, name, self._look)

    def _look(self, *_: object) -> None:
        self._reducers = [
            found for module in self._modules if (found := reducer_of_replicate(module))
        ]
        around = active_wrapper()
        if around is not None and not (self._reducers and _is_made_by_replicate(around)):
            self._replicated[id(around)] = around
        axes = self._averaged()
        self._annotations.averaged_by_wrapper(axes)
        if (
            axes
            and self._annotations.entries.mean_gradients is None
            and axes not in self._noted_axes
        ):
            self._noted_axes.add(axes)
            self._writer.add(NoteEvent("averages", self._names()))

    def _averaged(self) -> tuple[str, ...]:
        """The axes over which most wrappers average; () if these are not known.

        Which gradients are shares of a mean depends on the loss, so it is the same for all
        modules.  A wrapper that averages over other axes than the others do is itself at fault.
        """
        reducers = [*map(reducer_of_wrapper, self._replicated.values()), *self._reducers]
        found = Counter(_axes_of_reducer(reducer, self._point) for reducer in reducers)
        found.update(_axes_of_fsdp(module, axes, self._point) for module, axes in self._sharded)
        ranked = [axes for axes, _ in found.most_common()]  # equal counts: the outermost first
        return ranked[0] or () if ranked else ()

    def _names(self) -> str:
        names: dict[str, bool] = {
            "DistributedDataParallel": bool(self._replicated),
            "replicate": bool(self._reducers) or any(map(_is_replicated, self._sharded)),
            "fully_shard": not all(map(_is_replicated, self._sharded)),
        }
        return " and ".join(name for name, used in names.items() if used)


def _is_replicated(sharded: tuple[nn.Module, object]) -> bool:
    return is_replicated(sharded[0])


def _is_made_by_replicate(wrapper: nn.Module) -> bool:
    """Whether the older `replicate` made this DistributedDataParallel, around a ParameterList."""
    return isinstance(wrapper.module, nn.ParameterList)


def _axes_of_reducer(reducer: Reducer, point: Point) -> tuple[str, ...] | None:
    """The axes over which gradients are averaged; None if a communication hook is unknown."""
    if not all(map(_averages, reducer.hooks)):
        return None
    return varying(dist.get_process_group_ranks(reducer.group), point)


def _averages(hook: Any) -> bool:
    module, name = getattr(hook, "__module__", ""), getattr(hook, "__name__", "")
    return str(module).startswith(_HOOKS_OF_TORCH) and name in _AVERAGING_HOOKS


def _axes_of_mesh(module: nn.Module, point: Point) -> tuple[str, ...] | None:
    """The axes over which FSDP2 reduces a module's gradients; None if they cannot be determined.

    They are taken from the device mesh of the shards, before the parameters are unsharded.  With
    tensor parallelism this mesh also has a dimension for tp.
    """
    sharded: Any = next((p for p in module.parameters() if is_dtensor(p)), None)
    if sharded is None:
        return None
    return varying(sharded.device_mesh.mesh.flatten().tolist(), point)


def _axes_of_fsdp(
    module: nn.Module, axes: tuple[str, ...] | None, point: Point
) -> tuple[str, ...] | None:
    """The axes over which FSDP2 averages; None if they cannot be determined.

    `axes` are those over which it reduces.  It averages over all of them unless the program set
    another divisor; then the axes are those whose sizes have the divisor as their product.
    """
    factors = set(divisors_of(module))
    if axes is None or factors <= {None}:
        return axes
    factor = factors.pop() if len(factors) == 1 else None
    candidates = [tuple(axes[:n]) for n in range(len(axes) + 1)]
    candidates += [(axis,) for axis in axes[1:]]
    fitting = {
        candidate
        for candidate in candidates
        if math.prod(point.size(axis) for axis in candidate) == factor
    }
    return fitting.pop() if len(fitting) == 1 else None


def varying(ranks: Sequence[int], point: Point) -> tuple[str, ...] | None:
    """The axes of data parallelism (dp, cp) along which the coordinates of `ranks` differ.

    None unless `ranks` have every combination of coordinates along these axes.  If several mesh
    axes together make up a role, such as dp, the result names the role instead of these axes.
    """
    places = [point.coordinates(int(rank)) for rank in ranks]
    data = point.mesh.expand(_DATA_AXES)
    axes = tuple(axis for axis in data if len({place[axis] for place in places}) > 1)
    lines = {tuple(place[axis] for axis in axes) for place in places}
    if len(lines) != math.prod(point.size(axis) for axis in axes):
        return None
    return point.mesh.fold(axes, point.sizes)


def _size(module: Any) -> int:
    """The number of ranks that shard an FSDP1 module."""
    return dist.get_world_size(module.process_group)


def _unsupported(module: Any) -> ProgramError:
    return ProgramError(
        f"ctx.watch was given a {type(module).__name__} (FSDP1), which keeps parameters in flat "
        "buffers whose layout is not supported; shard the same modules with "
        "torch.distributed.fsdp.fully_shard (FSDP2) instead"
    )
