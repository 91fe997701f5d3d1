"""What torch sets around a part of a program is that of the rank, also if the others run inside."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.autograd.graph import allow_mutation_on_saved_tensors
from torch.distributed._shard import api
from torch.distributed.checkpoint import planner
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.experimental import implicit_replication
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import parametrize
from torch.utils import _device, checkpoint

from pytest_trainsafe.compat.distributed import rank_worlds
from pytest_trainsafe.core.rank import state as rank_state
from tests.support.launch.in_turn import in_turn

WORLD = 3


class Waits(nn.Linear):
    """A layer whose forward lets the other ranks run, and notes the wrapper around it."""

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        for _ in range(2):  # a rank that goes on after the first one waits inside of the forward
            dist.all_reduce(torch.ones(1))
        self.around: Any = DistributedDataParallel._get_active_ddp_module()
        return super().forward(given)


@pytest.mark.parametrize("kept", [True, False])
def test_the_wrapper_whose_forward_runs_is_that_of_the_rank(
    kept: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not if the exchange leaves its variable out: then it is that of the rank that ran last."""
    monkeypatch.setattr(DistributedDataParallel, "_active_ddp_module", None)
    if not kept:
        monkeypatch.setattr(
            rank_state,
            "modules",
            {
                where: each
                for where, each in rank_state.modules.items()
                if each.module != "torch.nn.parallel.distributed"
            },
        )

    def program() -> bool:
        wrapped = DistributedDataParallel(Waits(2, 2))
        for _ in range(2):
            wrapped(torch.ones(1, 2)).sum().backward()
        around = wrapped.module.around
        return around is wrapped

    assert all(in_turn(program, WORLD)) is kept


def replicates() -> bool:
    """DTensor takes tensors for replicated ones."""
    return bool(DTensor._op_dispatcher._allow_implicit_replication)


def stops_early() -> bool:
    """Checkpoints compute no more of a forward again than they need."""
    return checkpoint._enable_checkpoint_early_stop is False


def only_math() -> bool:
    """Attention has no kernel that joins its operations."""
    return not torch.backends.cuda.flash_sdp_enabled()


def caches() -> bool:
    """Parametrized weights are computed once."""
    return bool(parametrize._cache_enabled)


def allows() -> bool:
    """Saved tensors may be changed."""
    return torch.autograd.graph._allow_mutation_on_saved_tensors_enabled


def has_device() -> bool:
    """Tensors are created on a device that the rank chose."""
    return _device.CURRENT_DEVICE is not None


def loads() -> bool:
    """Sharded tensors are loaded into the rank's group."""
    return api._CURRENT_PROCESS_GROUP is dist.group.WORLD


#: A context, and whether it holds.
CONTEXTS: list[tuple[Callable[[], Any], Callable[[], bool]]] = [
    (implicit_replication, replicates),
    (lambda: checkpoint.set_checkpoint_early_stop(False), stops_early),
    (lambda: sdpa_kernel(SDPBackend.MATH), only_math),
    (parametrize.cached, caches),
    (allow_mutation_on_saved_tensors, allows),
    (lambda: _device.DeviceContext("cpu"), has_device),
    (lambda: api.load_with_process_group(dist.group.WORLD), loads),
]


@pytest.mark.parametrize(("context", "holds"), CONTEXTS)
def test_a_context_holds_for_the_rank_that_is_in_it(
    context: Callable[[], Any], holds: Callable[[], bool]
) -> None:
    """Until it ends, although that of another rank ends earlier, and not for a rank outside."""

    def program() -> list[bool]:
        rank = dist.get_rank()
        found = [holds()]
        with context() if rank else contextlib.nullcontext():
            for _ in range(rank):
                dist.barrier()
            found.append(holds())
        for _ in range(WORLD - rank):
            dist.barrier()
        return [*found, holds()]

    assert in_turn(program, WORLD) == [[False, rank > 0, False] for rank in range(WORLD)]
    if holds is not loads:
        assert not holds()


def test_plans_of_checkpoints_that_torch_keeps_are_those_of_the_rank() -> None:
    def program() -> dict[str, Any]:
        planner.SavePlanner._cached_save_plan["key"] = dist.get_rank()  # type: ignore[assignment]
        dist.barrier()
        return dict(planner.SavePlanner._cached_save_plan)

    assert in_turn(program, WORLD) == [{"key": rank} for rank in range(WORLD)]
    assert planner.SavePlanner._cached_save_plan == {}


def test_torch_has_each_variable_that_is_kept() -> None:
    """Another name in a release of torch would be left out in silence."""
    for module, names in rank_worlds.SET_AROUND:
        for name in names:
            owner: Any = importlib.import_module(module)
            *path, last = name.split(".")
            for part in path:
                owner = getattr(owner, part)
            assert hasattr(owner, last), (module, name)
