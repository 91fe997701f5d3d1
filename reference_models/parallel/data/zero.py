"""ZeRO-1: each rank of dp and cp keeps the master weights and optimizer states of its share only.

(Rajbhandari et al. 2020, section 5.1; Megatron-LM's distributed optimizer.)  A share is a range
of a bucket, so a rank may hold a range of a parameter's flattened elements, or none of them.  Each
rank updates its share and all-gathers the shares of the others.
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
    """A bucket and this rank's share of it.

    `own` holds the share's parameter values in a flat tensor, and `masters` their master weights:
    the same tensor if the parameters are not narrower than float32.
    """

    bucket: Bucket
    own: Tensor
    masters: Tensor


class ShardedAdamW(torch.optim.AdamW):
    """AdamW over this rank's shares of all buckets.

    Each parameter gets an attribute `main_param_range`: the (start, end) of this rank's range of
    the flattened parameter, (0, 0) for none.  Its attribute `main_param` holds the master weights
    of the range; None without a range.
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
            self._gathers = {}  # Nobody waits for the gathers any more, and nobody copies.

    @torch.no_grad()
    def _finish(self, number: int) -> None:
        values = self._gathers.pop(number).wait()
        for parameter, (start, end) in self.shared[number].bucket.places.items():
            parameter.copy_(values[start:end].view_as(parameter))

    def _gather_before_use(self, model: nn.Module) -> None:
        """Makes each module wait for its updated parameters just before its forward."""
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
    """This rank's share of a bucket.

    Sets the attributes `main_param` and `main_param_range` of the bucket's parameters.
    """
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
