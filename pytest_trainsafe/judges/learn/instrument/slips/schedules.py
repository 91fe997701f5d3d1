"""Watches learning rate schedulers: when they step, and what a loaded state means for them."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

import torch
from torch.optim import Optimizer
from torch.optim.lr_scheduler import (
    CosineAnnealingLR,
    CosineAnnealingWarmRestarts,
    ExponentialLR,
    LambdaLR,
    LRScheduler,
    MultiStepLR,
    ReduceLROnPlateau,
    StepLR,
)

from pytest_trainsafe.compat.training import schedulers_of
from pytest_trainsafe.judges.learn.instrument.slips.moments import (
    Moment,
    Training,
    Watcher,
    parameters_of,
    wraps,
)

#: A scheduler that has not stepped is judged at the end, after so many steps of its optimizer, or
#: after some if the data were iterated so often: a short run may end before the first epoch does.
_STEPS, _LONG, _PASSES = 3, 20, 3
#: A schedule in steps that steps once for so many of them.
_RARE = 3
#: A cosine schedule is too short if the optimizer steps by this share after its end.
_OVER = 0.05
#: The most schedulers that are judged at the end.
_MANY = 1024
#: Schedules that multiply the rate, and the least share of its first value that makes sense.
_DECAYS, _VANISHED = (ExponentialLR, MultiStepLR, StepLR), 5e-4
#: How exactly a factor is the first learning rate.
_SAME = 1e-6
#: A metric is judged after so many values, if it has risen by so much.
_VALUES, _RISE = 4, 0.1
#: Shares are those of fewer examples, and how exactly.
_COUNTS, _FRACTION = 1025, 2e-4
#: Calls inside which a scheduler steps another one, or begins.
_OWN = ("schedule", "scheduler_made")


@dataclass(slots=True)
class _Of:
    """A scheduler: how often its optimizer had stepped at its last step, and its own steps.

    `idle` counts the steps of its optimizer before its own first step, and `passes` the iterations
    of loaders.  `ahead` counts its steps before the optimizer's first one, and `between` says that
    a backward came between them.
    """

    name: str
    at: int
    steps: int = 0
    idle: int = 0
    passes: int = 0
    ahead: int = 0
    between: bool = False
    backwards: int = 0
    loaded: bool = False
    #: For a LambdaLR: the first rate, the largest factor of it so far, and the last one.
    base: float = 0.0
    peak: float = 0.0
    last: float = 0.0
    #: How often it has stepped while others step what its optimizer holds; and for a schedule that
    #: watches a metric, its values.
    vain: int = 0
    #: The number of steps after which it ends, 0 if that is not known.
    length: int = 0
    taken: int = 0
    metrics: list[float] = field(default_factory=list)


class Schedules(Watcher):
    """Sees schedulers, steps of optimizers, and states that are loaded."""

    kinds = (
        *("scheduler_made", "schedule", "scheduler_load"),
        *("step", "scaler_step", "optimizer_load", "iter", "backward"),
    )

    def __init__(self, training: Training) -> None:
        super().__init__(training)
        self._schedulers: WeakKeyDictionary[LRScheduler, _Of] = WeakKeyDictionary()
        #: All of them: a scheduler that is not used dies with the function that made it.
        self._all: list[_Of] = []
        self._steps: WeakKeyDictionary[Optimizer, int] = WeakKeyDictionary()
        self._backwards = 0
        #: The learning rates of optimizers whose state was loaded, until they step.
        self._rates: WeakKeyDictionary[Optimizer, tuple[object, ...]] = WeakKeyDictionary()

    def entered(self, moment: Moment) -> None:
        if moment.kind == "step" and moment.outermost and not moment.inside("scaler_step"):
            self._stepping(moment.thing)
        elif moment.kind == "scaler_step":
            optimizer = moment.argument(0, "optimizer")
            if isinstance(optimizer, Optimizer):
                self._stepping(optimizer)
        elif moment.kind == "iter":
            for each in self._schedulers.values():
                each.passes += not each.steps
        elif moment.kind == "backward":
            self._backwards += 1

    def _stepping(self, optimizer: Optimizer) -> None:
        self._steps[optimizer] = self._steps.get(optimizer, 0) + 1
        own = [each for each in self._schedulers if _optimizer_of(each) is optimizer]
        for each in own:
            state = self._schedulers[each]
            state.idle += not (state.steps or each.last_epoch)
            state.taken += 1
            self._judge(each, state)
        loaded = self._rates.pop(optimizer, None)
        if loaded is None:
            return
        if any("initial_lr" in group for group in optimizer.param_groups):
            cold = [
                each for each in own if not each.last_epoch and not self._schedulers[each].loaded
            ]
            if cold and loaded[0]:
                self.training.slip(
                    "schedule-began-anew", f"{type(cold[0]).__name__} is at its first rate"
                )
                return
        if own and loaded[1:] != _rates(optimizer):
            self.training.slip(
                "rate-lost", f"the rate is {_rates(optimizer)[0]}, and was {loaded[1]} when loaded"
            )

    def _judge(self, scheduler: LRScheduler, state: _Of) -> None:
        """What a step of the optimizer shows of its scheduler."""
        ahead, state.ahead = state.ahead, 0
        # A resumed training may step to its epoch at once.
        if ahead == 1 or (ahead and state.between):
            self.training.slip("scheduled-ahead", "the optimizer has not stepped yet")
        if isinstance(scheduler, CosineAnnealingLR):
            over = scheduler.last_epoch - scheduler.T_max
            if over > _OVER * scheduler.T_max:
                self.training.slip(
                    "schedule-overrun",
                    f"step {scheduler.last_epoch} of {scheduler.T_max}: the rate rises again",
                )

    def left(self, moment: Moment) -> None:
        if moment.failed:
            return
        thing = moment.thing
        if moment.kind == "optimizer_load":
            state = moment.argument(0, "state_dict")
            # A wrapper may load the state of an optimizer that has not stepped into itself.
            if isinstance(state, dict) and state.get("state"):
                groups = state.get("param_groups", ())
                scheduled = any("initial_lr" in group for group in groups)
                self._rates[thing] = (scheduled, *_rates(thing))
        elif moment.kind == "scheduler_load":
            self._of(thing).loaded = True
        elif moment.kind == "scheduler_made":
            if not moment.inside(*_OWN):
                self._factor(thing, self._of(thing))
                self._of(thing).length = _length_of(thing)
            for part in schedulers_of(thing):  # it steps them when their turn comes
                self._of(part).steps += 1
        elif moment.kind == "schedule" and not moment.inside(*_OWN):
            self._scheduled(thing)
            self._epoch(thing, moment.argument(0, "epoch"))
            if isinstance(thing, ReduceLROnPlateau):
                self._watches(thing, moment.argument(0, "metrics"))

    def _of(self, scheduler: LRScheduler) -> _Of:
        known = self._schedulers.get(scheduler)
        if known is None:
            optimizer = _optimizer_of(scheduler)
            at = 0 if optimizer is None else self._steps.get(optimizer, 0)
            known = self._schedulers[scheduler] = _Of(type(scheduler).__name__, at)
            if len(self._all) < _MANY:
                self._all.append(known)
        return known

    def _scheduled(self, scheduler: LRScheduler) -> None:
        optimizer = _optimizer_of(scheduler)
        known = scheduler in self._schedulers
        state = self._of(scheduler)
        state.steps += 1
        if optimizer is None:
            return
        self._rates.pop(optimizer, None)
        self._factor(scheduler, state)
        steps = self._steps.get(optimizer, 0)
        if not steps and self._replaced(optimizer):
            state.vain += 1
            if state.vain == _STEPS:
                self.training.slip(
                    "scheduled-ahead", "another optimizer steps what that of the schedule holds"
                )
        if known and steps == state.at and steps:
            self.training.slip(
                "scheduled-ahead",
                f"{type(scheduler).__name__} has stepped {state.steps} times, "
                f"and the optimizer {steps} times",
            )
        elif known and steps == state.at:
            state.between |= bool(state.ahead) and state.backwards != self._backwards
            state.ahead, state.backwards = state.ahead + 1, self._backwards
        state.at = steps

    def _replaced(self, optimizer: Optimizer) -> bool:
        """Whether an optimizer that has never stepped holds what another one steps."""
        own = {id(each) for each in parameters_of(optimizer)}
        return any(
            id(each) in own
            for other in self._steps
            if other is not optimizer
            for each in parameters_of(other)
        )

    def _watches(self, scheduler: ReduceLROnPlateau, metric: object) -> None:
        """Whether a schedule that waits for a metric to fall gets a share that is to rise.

        A share of so many examples is a fraction, and a loss is none.  A share of errors falls.
        """
        values = self._of(scheduler).metrics
        if not isinstance(metric, torch.Tensor | float | int) or len(values) >= _MANY:
            return
        values.append(float(metric))
        if scheduler.mode != "min" or len(values) < _VALUES or values[-1] - values[0] < _RISE:
            return
        rises = sum(one < other for one, other in itertools.pairwise(values))
        if 2 * rises > len(values) - 1 and min(values) >= 0 and _are_shares(values):
            self.training.slip(
                "plateau-inverted", f"the metric has risen from {values[0]:.4g} to {values[-1]:.4g}"
            )

    def _epoch(self, scheduler: LRScheduler, epoch: object) -> None:
        """Whether a schedule gets a number that is no epoch."""
        fractions = isinstance(scheduler, ReduceLROnPlateau | CosineAnnealingWarmRestarts)
        if isinstance(epoch, torch.Tensor | float) and not fractions and float(epoch) % 1:
            self.training.slip(
                "metric-as-epoch", f"{type(scheduler).__name__} gets {float(epoch):.4g}"
            )

    def _factor(self, scheduler: LRScheduler, state: _Of) -> None:
        """Looks at the factor by which a schedule has multiplied the first rate."""
        base = getattr(scheduler, "base_lrs", (0.0,))[0]
        now = scheduler.optimizer.param_groups[0].get("lr", 0.0)
        if not base or isinstance(base, torch.Tensor) or isinstance(now, torch.Tensor):
            return
        factor = float(now) / base
        if isinstance(scheduler, _DECAYS) and 0 < factor < _VANISHED:
            self.training.slip(
                "rate-vanished", f"{type(scheduler).__name__} has made {base} to {now:.3g}"
            )
        if isinstance(scheduler, LambdaLR):
            before = state.last
            state.base, state.peak, state.last = base, max(state.peak, factor), factor
            if before and abs(before / base - 1) <= _SAME and state.peak == before >= factor:
                self._squared(state)

    def _squared(self, state: _Of) -> None:
        if state.base < 1:
            self.training.slip("rate-squared", f"{state.name} multiplies {state.base} by itself")

    def ended(self) -> None:
        for each in self._all:
            falls = each.steps >= _STEPS and each.last < each.peak
            if falls and abs(each.peak / each.base - 1) <= _SAME:
                self._squared(each)
            # Its length is that of the training in steps, and it has stepped once for many of them.
            rare = each.steps > 1 and _RARE * each.steps <= each.length
            if rare and each.taken == each.length >= _LONG:
                self.training.slip(
                    "schedule-unfinished",
                    f"{each.name} has made {each.steps} of {each.length} steps",
                )
            enough = _STEPS if each.passes >= _PASSES else _LONG
            if not each.steps and each.idle >= enough:
                self.training.slip(
                    "never-scheduled",
                    f"{each.name} has not stepped in {each.idle} steps of its optimizer",
                )


def _length_of(scheduler: LRScheduler) -> int:
    for name in ("T_max", "total_steps", "total_iters"):
        length = getattr(scheduler, name, None)
        if isinstance(length, int):
            return length
    return 0


def _are_shares(values: Sequence[float]) -> bool:
    """Whether numbers are shares of one count: as fractions, or of a hundred."""
    whole = 1.0 if max(values) <= 1 else 100.0
    if max(values) > whole:
        return False
    shares = [value / whole for value in values]
    return any(
        all(abs(each * count - round(each * count)) < _FRACTION for each in shares)
        for count in range(2, _COUNTS)
    )


def _optimizer_of(scheduler: LRScheduler) -> Optimizer | None:
    """The optimizer of a scheduler, whose steps are seen: the inner one of a wrapper."""
    found = getattr(scheduler, "optimizer", None)
    while isinstance(found, Optimizer) and wraps(found):
        found = next(each for each in vars(found).values() if isinstance(each, Optimizer))
    return found if isinstance(found, Optimizer) else None


def _rates(optimizer: Optimizer) -> tuple[object, ...]:
    return tuple(float(group["lr"]) for group in optimizer.param_groups if "lr" in group)
