"""Watches losses that are divided by a count of all ranks, whose gradients are averaged."""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from pytest_trainsafe.compat.distributed.parallel import divisors_of, reducer_of_wrapper
from pytest_trainsafe.judges.learn.instrument.slips.moments import (
    Moment,
    Training,
    Watcher,
    several_ranks,
)
from pytest_trainsafe.record.clock import in_backward

#: So many rounds are looked at, and how exactly a loss is a sum over a count.
_ROUNDS, _EQUAL = 8, 1e-4


class Counted(Watcher):
    """Sees models that run, collectives, losses and backwards, if there are several ranks."""

    kinds = ("module", "collective", "loss", "backward", "step")

    def __init__(self, training: Training) -> None:
        super().__init__(training)
        #: Whether a wrapper averages the gradients of the model that ran last over all ranks.
        self._averages = False
        #: The counts of all ranks since the last step, and the sums of the losses that no backward
        #: has used.
        self._counts: set[float] = set()
        self._sums: list[float] = []

    def entered(self, moment: Moment) -> None:
        if not moment.outermost or not self._looks():
            return
        if moment.kind == "module":
            if torch.is_grad_enabled() and not in_backward():
                self._averages = _averages(moment.thing)
        elif moment.kind == "collective":
            moment.given["count"] = _count(moment)
        elif moment.kind == "backward":
            sums, self._sums = self._sums, []
            self._judge(moment.thing, sums)
        elif moment.kind == "step":
            self._counts.clear()

    def left(self, moment: Moment) -> None:
        if moment.failed or not moment.outermost or not self._looks():
            return
        if moment.kind == "collective":
            before, after = moment.given.get("count"), _count(moment)
            if before is not None and after is not None and 0 < before < after:
                self._counts.add(after)
        elif moment.kwargs.get("reduction") in ("sum", "none"):
            result = moment.result
            if moment.kind == "loss" and isinstance(result, torch.Tensor) and result.requires_grad:
                self._sums.append(float(result.detach().sum()))

    def _looks(self) -> bool:
        return several_ranks() and self.training.young < _ROUNDS

    def _judge(self, total: object, sums: list[float]) -> None:
        """Whether a loss is its sum over a count of all ranks, and not times their number."""
        if not self._averages or len(sums) != 1 or not sums[0]:
            return
        if not isinstance(total, torch.Tensor) or total.numel() != 1:
            return
        share = float(total.detach()) / sums[0]
        for count in self._counts:
            if abs(share * count - 1) <= _EQUAL:
                self.training.slip(
                    "count-averaged",
                    f"the sum is divided by {count:.0f}, and its gradients are averaged over "
                    f"{dist.get_world_size()} ranks",
                )


def _averages(model: nn.Module) -> bool:
    """Whether gradients of a model are averaged over all ranks, as torch's wrappers do."""
    if isinstance(model, DistributedDataParallel):
        group, hooks = reducer_of_wrapper(model)
        return not hooks and group.size() == dist.get_world_size()
    sharded = getattr(sys.modules.get("torch.distributed.fsdp"), "FSDPModule", None)
    if sharded is None or not isinstance(model, sharded):
        return False
    meshes = [getattr(each, "device_mesh", None) for each in model.parameters()]
    alone = all(each is not None and each.ndim == 1 for each in meshes)
    every = alone and all(each.size() == dist.get_world_size() for each in meshes)  # type: ignore[union-attr]
    parts = [each for each in model.modules() if isinstance(each, sharded)]
    return every and all(factor is None for part in parts for factor in divisors_of(part))


def _count(moment: Moment) -> float | None:
    """The whole number that all ranks sum in a call; None for any other collective."""
    if moment.api.rpartition(".")[2] != "all_reduce" or moment.argument(3, "async_op", False):
        return None
    given, group = moment.argument(0, "tensor"), moment.argument(2, "group")
    if moment.argument(1, "op", dist.ReduceOp.SUM) != dist.ReduceOp.SUM:
        return None
    if group is not None and group.size() != dist.get_world_size():
        return None
    if not isinstance(given, torch.Tensor) or given.numel() != 1 or given.requires_grad:
        return None
    value = float(given.detach())
    return value if value == round(value) else None
