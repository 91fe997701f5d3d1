"""Watches whether steps move weights, and with which rates."""

from __future__ import annotations

from dataclasses import dataclass, field
from weakref import WeakKeyDictionary, WeakSet

import torch
from torch import nn
from torch.optim import Optimizer

from pytest_trainsafe.judges.learn.instrument.slips.moments import (
    Moment,
    Training,
    Watcher,
    parameters_of,
)

#: Numbers that are rounded more coarsely are of low precision.
_COARSE = 5e-4
#: So many steps have to move a parameter of at least so many elements, and this share of all.
_STEPS, _ELEMENTS, _SHARE = 5, 4, 0.25
#: So many steps without a rate are no warm-up that begins at zero, unless the schedule steps once
#: for so many: then it is so many steps of the schedule.
_IDLE, _EPOCHS = 3, 2
#: So many changes of a rate by hand are a schedule.
_BY_HAND = 3


@dataclass(slots=True)
class _Low:
    """A parameter of low precision: its first content, and where each gradient was not zero."""

    parameter: torch.Tensor
    before: torch.Tensor
    graded: torch.Tensor


@dataclass(slots=True)
class _Of:
    """An optimizer: the rates of its groups when it was made, and counts of steps.

    `low` has the parameters whose first `looked` steps are looked at; it is None afterwards.
    `idle` counts the steps in succession without a rate.  `since` counts the steps since the
    schedule's last one, of which `longest` were between two of them, and `waits` says that it has
    not stepped yet.
    """

    rates: tuple[float, ...] = ()
    low: list[_Low] | None = None
    looked: int = 0
    idle: int = 0
    since: int = 0
    longest: int = 0
    waits: bool = False
    merged: bool = False
    #: The rates at the last step, and how often each of them has changed.
    before: tuple[float, ...] = ()
    changes: list[int] = field(default_factory=list)


class Updates(Watcher):
    """Sees optimizers and schedulers that are made, and steps."""

    kinds = ("optimizer_made", "scheduler_made", "optimizer_load", "schedule", "step")

    def __init__(self, training: Training) -> None:
        super().__init__(training)
        self._of: WeakKeyDictionary[Optimizer, _Of] = WeakKeyDictionary()
        #: Optimizers whose rates somebody else is responsible for.
        self._scheduled: WeakSet[Optimizer] = WeakSet()

    def entered(self, moment: Moment) -> None:
        if moment.kind != "step" or not moment.outermost:
            return
        optimizer = moment.thing
        state = self._of.setdefault(optimizer, _Of(_rates(optimizer)))
        rates = _rates(optimizer)
        self._judge(optimizer, state, rates)
        own = type(optimizer).__module__.startswith("torch.")
        if own and state.looked < _STEPS and any(rates) and not moment.argument(0, "closure"):
            self._look(optimizer, state)

    def left(self, moment: Moment) -> None:
        if moment.failed or not moment.outermost:
            return
        if moment.kind == "optimizer_made":
            self._of[moment.thing] = _Of(_rates(moment.thing))
        elif moment.kind == "optimizer_load":
            self._scheduled.add(moment.thing)
        elif moment.kind == "scheduler_made":
            optimizer = getattr(moment.thing, "optimizer", None)
            if isinstance(optimizer, Optimizer):
                self._scheduled.add(optimizer)
                own = self._of.setdefault(optimizer, _Of(_rates(optimizer)))
                own.waits = True
                self._merges(own, _rates(optimizer))
        elif moment.kind == "schedule":
            state = self._of.get(getattr(moment.thing, "optimizer", None))  # type: ignore[arg-type]
            if state is not None:
                state.longest, state.since = max(state.longest, state.since), 0
                state.waits = False
        elif moment.kind == "step" and self._of[moment.thing].looked == _STEPS:
            state = self._of[moment.thing]
            self._moved(state.low or [])
            state.low, state.looked = None, _STEPS + 1

    def _judge(self, optimizer: Optimizer, state: _Of, rates: tuple[float, ...]) -> None:
        state.idle = state.idle + 1 if rates and not any(rates) else 0
        state.since += 1
        enough = _IDLE if state.longest <= 1 else max(_IDLE, _EPOCHS * state.longest)
        if state.idle == enough and not state.waits:
            self.training.slip("rate-zero", f"{type(optimizer).__name__} has stepped so {enough} x")
        if optimizer not in self._scheduled:
            self._merges(state, rates)
            self._parted(state, rates)

    def _merges(self, state: _Of, rates: tuple[float, ...]) -> None:
        """Whether groups have one rate that were made with different ones."""
        differ = len(set(state.rates)) > 1 and len(rates) == len(state.rates)
        if differ and len(set(rates)) == 1 and any(rates) and not state.merged:
            state.merged = True
            self.training.slip(
                "rates-merged", f"the rates were {state.rates}, and all are {rates[0]}"
            )

    def _parted(self, state: _Of, rates: tuple[float, ...]) -> None:
        """Whether some groups that began with one rate follow a schedule, and others do not."""
        before, state.before = state.before, rates
        if len(before) != len(rates):
            state.changes = [0] * len(rates)
            return
        changed = [now != was for now, was in zip(rates, before, strict=True)]
        state.changes = [count + new for count, new in zip(state.changes, changed, strict=True)]
        alike = len(state.rates) == len(rates) > 1 and len(set(state.rates)) == 1
        if alike and not min(state.changes) and _BY_HAND in state.changes and any(changed):
            still = state.changes.count(0)
            self.training.slip(
                "rates-parted", f"{still} of {len(rates)} groups keep the rate {state.rates[0]}"
            )

    def _look(self, optimizer: Optimizer, state: _Of) -> None:
        state.looked += 1
        if state.low is None:
            low = [each for each in parameters_of(optimizer) if _is_low(each)]
            self._eps(optimizer, low)
            state.low = [
                _Low(each, each.detach().clone(), torch.ones_like(each, dtype=torch.bool))
                for each in low
            ]
        for each in state.low:
            gradient = each.parameter.grad
            if gradient is None or gradient.is_sparse:
                each.graded.zero_()
            else:
                each.graded &= gradient.detach() != 0

    def _moved(self, low: list[_Low]) -> None:
        moved = every = 0
        for each in low:
            count = int(each.graded.sum())
            own = int(((each.parameter.detach() != each.before) & each.graded).sum())
            if count >= _ELEMENTS and not own:
                self.training.slip(
                    "updates-rounded", f"{_STEPS} steps have moved none of {count} weights of one"
                )
                return
            moved, every = moved + own, every + count
        if moved < _SHARE * every:
            self.training.slip(
                "updates-rounded", f"{_STEPS} steps have moved {moved} of {every} weights"
            )

    def _eps(self, optimizer: Optimizer, low: list[torch.Tensor]) -> None:
        for group in optimizer.param_groups:
            eps = group.get("eps")
            if isinstance(eps, float) and eps:
                for each in low:
                    if not float(torch.tensor(eps, dtype=each.dtype)):
                        self.training.slip("eps-vanishes", f"{eps} is zero as {each.dtype}")
                        return


def _is_low(parameter: torch.Tensor) -> bool:
    if type(parameter) is not nn.Parameter or not parameter.is_floating_point():
        return False
    return torch.finfo(parameter.dtype).eps > _COARSE and parameter.grad is not None


def _rates(optimizer: Optimizer) -> tuple[float, ...]:
    return tuple(float(group["lr"]) for group in optimizer.param_groups if "lr" in group)
