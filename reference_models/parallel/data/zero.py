"""ZeRO-1: each rank of dp and cp keeps the masters and the states of its share alone.

(Rajbhandari et al. 2020, section 5.1; Megatron-LM's distributed optimizer.)  A share is a range
of a bucket, so of a parameter a rank may hold a run of its flattened elements, or none.  The rank
updates its share, and all-gathers what the others updated.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from pytest_trainsafe.reference_models.parallel.axes import Axes
from pytest_trainsafe.reference_models.parallel.collectives import Underway, start_all_gather
from pytest_trainsafe.reference_models.parallel.data.buckets import Bucket
from pytest_trainsafe.reference_models.training.main_gradients import is_narrow
from pytest_trainsafe.reference_models.training.optimizer import ADAMW


@dataclass(slots=True)
class Shared:
    """A bucket, this rank's share of its parameters, flat, and the masters of that share: the
    same tensor where parameters are wide.
    """

    bucket: Bucket
    own: Tensor
    masters: Tensor


class ShardedAdamW(torch.optim.AdamW):
    """AdamW of this rank's shares of all buckets.

    A parameter of which this rank has a run gains `main_param`, the run of its masters, and
    `main_param_range`, where in the flattened parameter it lies; (0, 0) if it has none.
    """

    def __init__(
        self, model: nn.Module, buckets: list[Bucket], axes: Axes, learning_rate: float
    ) -> None:
        self.axes = axes
        self.shared = [_share(bucket) for bucket in buckets]
        self._runs = [
            parameter
            for bucket in buckets
            for parameter in bucket.places
            if getattr(parameter, "main_param", None) is not None
        ]
        self._gathers: dict[int, Underway] = {}
        masters = [_master(parameter) for parameter in self._runs]
        super().__init__(masters, lr=learning_rate, **ADAMW)
        self.register_step_pre_hook(self._give_gradients)
        self.register_step_post_hook(self._update_parameters)
        if axes.techniques.overlap_param_gather:
            self._gather_before_use(model)

    def settle(self) -> None:
        """Waits for all gathers, so that parameters can be read outside of a forward."""
        for number in sorted(self._gathers):
            self._finish(number)

    def _give_gradients(self, *_: Any) -> None:
        for parameter in self._runs:
            held: Any = parameter
            start, end = held.main_param_range
            held.main_param.grad = held.main_grad.view(-1)[start:end]

    def _update_parameters(self, *_: Any) -> None:
        for number, shared in enumerate(self.shared):
            shared.own.copy_(shared.masters)
            self._gathers[number] = start_all_gather(shared.own, 0, shared.bucket.axis)
        if not self.axes.techniques.overlap_param_gather:
            self.settle()
        elif self.axes.planted("zero-gather-lost"):
            self._gathers = {}  # The list is made anew, so nobody waits, and nobody copies.

    @torch.no_grad()
    def _finish(self, number: int) -> None:
        values = self._gathers.pop(number).wait()
        for parameter, (start, end) in self.shared[number].bucket.places.items():
            parameter.copy_(values[start:end].view_as(parameter))

    def _gather_before_use(self, model: nn.Module) -> None:
        """Wait for a module's parameters just before its forward."""
        numbers = {p: n for n, shared in enumerate(self.shared) for p in shared.bucket.places}
        for module in model.modules():
            needed = {numbers[p] for p in module.parameters(recurse=False) if p in numbers}
            if needed:
                module.register_forward_pre_hook(self._on_use(sorted(needed)))

    def _on_use(self, needed: list[int]) -> Any:
        def hook(*_: object) -> None:
            for number in needed:
                if number in self._gathers:
                    self._finish(number)

        return hook


def _share(bucket: Bucket) -> Shared:
    """Give the bucket's parameters their masters on this rank."""
    part = bucket.own
    own = bucket.flat_parameters()[part].clone()
    masters = own.float() if is_narrow(own) else own
    for parameter, (first, last) in bucket.places.items():
        start, end = max(first, part.start), min(last, part.stop)
        held: Any = parameter
        if start < end:
            held.main_param_range = (start - first, end - first)
            held.main_param = nn.Parameter(masters[start - part.start : end - part.start])
        else:
            held.main_param_range = (0, 0)
            held.main_param = None
    return Shared(bucket, own, masters)


def _master(parameter: nn.Parameter) -> nn.Parameter:
    held: Any = parameter
    assert isinstance(held.main_param, nn.Parameter)
    return held.main_param
