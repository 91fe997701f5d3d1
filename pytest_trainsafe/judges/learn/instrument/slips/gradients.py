"""Watches what happens to gradients between a backward and the step that uses them."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary, WeakSet, ref

import torch
from torch import nn
from torch.optim import Optimizer

from pytest_trainsafe.compat.modules import own_parameters
from pytest_trainsafe.compat.tensors import local_part, version_of
from pytest_trainsafe.judges.learn.instrument.slips.data import tensors_in
from pytest_trainsafe.judges.learn.instrument.slips.moments import (
    Moment,
    Training,
    Watcher,
    parameters_of,
    several_ranks,
)
from pytest_trainsafe.judges.learn.instrument.slips.steps.windows import Windows

#: The least share of an optimizer's weights that no loss reaches which counts as a part of a model.
_PART = 0.2

#: An optimizer has no gradients for good if it has stepped so often without.
_EMPTY = 4

#: So many other scalers of one optimizer were made for each epoch.
_RENEWED = 2


@dataclass(frozen=True, slots=True, eq=False)
class _Mark:
    """A gradient and its version, which stay while nobody writes to it.

    The reference is weak, and not an id: a new gradient may get the id of one that was freed.
    """

    gradient: ref[torch.Tensor]
    version: int

    def __eq__(self, other: object) -> bool:
        # All weak references to a tensor without callbacks are one object while it lives.
        return (
            isinstance(other, _Mark)
            and self.gradient is other.gradient
            and self.version == other.version
        )


@dataclass(slots=True)
class _State:
    """What is known of one optimizer's gradients.

    `count` is how many backwards added to them since they were clear.  `backwards` is how many
    there had been in all at the last step.  `fresh` says that no step has used all of them, `used`
    that a step has used some of them.  `clips` is how many calls have clipped some since the last
    step.  `clipped` has the mark of each gradient that was clipped since a backward added to it,
    and `left` that of each which a backward or a clipping has left.  `reached` has the parameters
    that a backward has added to, and `touched` those since the last step.  `losses` says of the
    losses since then whether they were scaled.  `stepped` has the marks after the last step.
    `renewed` counts the scalers after the first one.  `scale` is the scaler of the last loss, and
    how often it had been updated by then.  `shared` has the gradients that somebody wrote to
    between the last backward and the clipping.
    """

    count: int = 0
    windows: Windows = field(default_factory=Windows)
    fresh: bool = False
    used: bool = False
    scaled: bool = False
    losses: set[bool] = field(default_factory=set)
    empty: int = 0
    clips: int = 0
    clipped: dict[int, _Mark] = field(default_factory=dict)
    left: dict[int, _Mark] = field(default_factory=dict)
    stepped: dict[int, _Mark] = field(default_factory=dict)
    reached: set[int] = field(default_factory=set)
    touched: set[int] = field(default_factory=set)
    steps: int = 0
    backwards: int = 0
    scaler: Any = None
    renewed: int = 0
    scale: tuple[Any, int] = (None, 0)
    shared: set[int] = field(default_factory=set)


class Gradients(Watcher):
    """Sees backwards, clipping, scaling, steps and clearing."""

    kinds = (
        *("backward", "clip", "scale", "unscale", "scaler_step", "scaler_update", "scaler_load"),
        *("step", "zero_grad", "module"),
    )

    def __init__(self, training: Training) -> None:
        super().__init__(training)
        self._of: WeakKeyDictionary[Optimizer, _State] = WeakKeyDictionary()
        self._scaled = False
        #: The scaler of the last loss, and how often each was updated.
        self._scaler: Any = None
        self._updates: WeakKeyDictionary[Any, int] = WeakKeyDictionary()
        self._backwards = 0
        self._loaded: set[int] = set()
        #: A hash of each graded parameter that no optimizer held at the first step, by its id, and
        #: the mark of its gradient.
        self._unheld: dict[int, tuple[int, _Mark]] = {}
        #: A hash of what a model in training ran with last; 0 if that wants gradients itself.
        self._input = 0
        #: The modules that ran with gradients before the first step.
        self._parts: WeakSet[nn.Module] = WeakSet()
        #: Optimizers whose parameters no loss has reached so far: what is known of each, the sizes
        #: of its parameters, and of those that were not reached, by id.
        self._late: list[tuple[_State, int, dict[int, int]]] = []

    def fresh_for(self, model: nn.Module) -> bool:
        """Whether gradients of a model's parameters wait for a step."""
        ids = {id(parameter) for parameter in model.parameters()}
        return any(
            state.fresh and any(id(each) in ids for each in parameters_of(optimizer))
            for optimizer, state in self._of.items()
        )

    def touched(self, optimizer: Optimizer) -> set[int]:
        """The ids of the parameters to whose gradients a backward has added since the last step."""
        return self._state(optimizer).touched

    def entered(self, moment: Moment) -> None:
        if moment.kind == "module":
            if torch.is_grad_enabled():
                if not self.training.rounds:
                    self._parts.add(moment.thing)
                if moment.outermost and len(self.training.optimizers) == 1:
                    self._ran(moment)
        elif moment.kind == "backward" and moment.outermost:
            self._backwards += 1
            moment.given["marks"] = {}
            for optimizer in list(self.training.optimizers):
                state = self._state(optimizer)
                marks = _marks(optimizer)
                if not marks or _all_zero(optimizer):
                    state.count, state.used, state.fresh, state.clipped = 0, False, False, {}
                    state.losses.clear()
                moment.given["marks"][id(optimizer)] = marks
        elif moment.kind == "clip" and moment.outermost:
            moment.given["marks"] = {
                id(each): _marks(each) for each in list(self.training.optimizers)
            }
            for each in list(self.training.optimizers) if several_ranks() else ():
                state, marks = self._state(each), moment.given["marks"][id(each)]
                state.shared |= {key for key in marks if state.left.get(key) != marks[key]}
        elif moment.kind == "step" and moment.outermost:
            if moment.argument(0, "closure") is None:
                self._step(moment.thing, moment)
        elif moment.kind == "zero_grad" and moment.outermost and not moment.inside("step"):
            self._cleared(moment.thing)
        elif moment.kind in ("unscale", "scaler_step"):
            optimizer = moment.argument(0, "optimizer")
            if isinstance(optimizer, Optimizer):
                self._unscales(self._state(optimizer), moment.thing)
                if moment.kind == "scaler_step":
                    self._scale(optimizer, moment.thing)

    def left(self, moment: Moment) -> None:
        if moment.failed:
            return
        if moment.kind == "backward" and moment.outermost:
            self._added(moment.given.get("marks", {}))
        elif moment.kind == "clip" and moment.outermost:
            self._clipped(moment.given.get("marks", {}), moment.result)
        elif moment.kind == "scale":
            self._scaled, self._scaler = bool(moment.thing.is_enabled()), moment.thing
        elif moment.kind == "scaler_update" and moment.outermost:
            self._updates[moment.thing] = self._updates.get(moment.thing, 0) + 1
        elif moment.kind == "scaler_load":
            self._loaded.add(id(moment.thing))
        elif moment.kind in ("unscale", "scaler_step"):
            optimizer = moment.argument(0, "optimizer")
            if isinstance(optimizer, Optimizer):
                state = self._state(optimizer)
                state.scaled = False
                state.left = _marks(optimizer)
                if moment.kind == "scaler_step":  # it may leave the step out
                    state.fresh, state.used, state.clips = False, True, 0
        elif moment.kind == "step" and moment.outermost:
            state = self._state(moment.thing)
            state.fresh, state.used, state.scaled = False, True, False
            state.clips, state.stepped = 0, _marks(moment.thing)
            state.steps += 1
            state.touched.clear()
            state.losses.clear()

    def _state(self, optimizer: Optimizer) -> _State:
        return self._of.setdefault(optimizer, _State())

    def _scale(self, optimizer: Optimizer, scaler: Any) -> None:
        state = self._state(optimizer)
        before, state.scaler = state.scaler, scaler  # kept, so that its id stays its own
        if before is None or before is scaler or id(scaler) in self._loaded:
            return
        state.renewed += 1
        if state.renewed == _RENEWED:  # a second phase may have a scaler of its own
            self.training.slip("scaler-renewed", "another GradScaler has stepped this optimizer")

    def _unscales(self, state: _State, scaler: Any) -> None:
        """Whether a scaler was updated after it scaled the loss of gradients that it unscales."""
        of, updates = state.scale
        if state.scaled and of is scaler and self._updates.get(scaler, 0) != updates:
            self.training.slip("scale-updated", "update() came after the backward")

    def _added(self, before: dict[int, dict[int, _Mark]]) -> None:
        for optimizer in list(self.training.optimizers):
            state, old = self._state(optimizer), before.get(id(optimizer), {})
            now = _marks(optimizer)
            if now == old:
                continue
            early = (
                state.clipped
                and not state.used
                and any(state.clipped.get(key) == mark != now.get(key) for key, mark in old.items())
            )
            if early:
                self.training.slip("clipped-early", "the backward adds to clipped gradients")
                state.clipped = {}
            state.count += 1
            state.fresh, state.scaled = True, self._scaled
            if self._scaled:
                state.scale = self._scaler, self._updates.get(self._scaler, 0)
            state.losses.add(self._scaled)
            new = [key for key, mark in now.items() if old.get(key) != mark]
            for key in new:
                state.clipped.pop(key, None)
            state.left = now
            state.shared.clear()
            state.reached.update(new)
            state.touched.update(new)
        self._scaled = False

    def _clipped(self, before: dict[int, dict[int, _Mark]], norm: object) -> None:
        touched = False
        every = [each.grad for one in self.training.optimizers for each in parameters_of(one)]
        if any(each is not None and local_part(each) is not None for each in every):
            return  # nothing shows that a DTensor was written to
        for optimizer in list(self.training.optimizers):
            state, old = self._state(optimizer), before.get(id(optimizer), {})
            new = {key: mark for key, mark in _marks(optimizer).items() if old.get(key) != mark}
            if not new:
                continue
            touched = True
            state.clips += 1
            state.clipped.update(new)
            state.left.update(new)
            if state.scaled:
                self.training.slip("clipped-scaled", "the gradients are those of a scaled loss")
        # Some dispatch modes keep the versions of what is written to, but not the norm at zero.
        found = isinstance(norm, torch.Tensor) and bool(norm.detach() != 0)
        if not touched and not found and self._of and self.training.rounds:
            self.training.slip("clipped-nothing", "the call changes no gradient of any optimizer")

    def _cleared(self, thing: object) -> None:
        optimizers = list(self.training.optimizers)
        if len(optimizers) != 1:
            return  # the loss of one model may reach another, whose gradients nobody wants
        state = self._state(optimizers[0])
        if not state.fresh or not (isinstance(thing, nn.Module) or thing is optimizers[0]):
            return
        if _marks(optimizers[0]):
            state.fresh = False
            windows = state.windows
            windows.dropped += bool(self._input) and self._input not in windows.inputs
            windows.inputs.add(self._input)

    def _ran(self, moment: Moment) -> None:
        """Note what a model in training gets.  An attack wants gradients of the input."""
        given = tensors_in([*moment.args, *moment.kwargs.values()])
        self._input = 0
        if given and moment.thing.training and not any(each.requires_grad for each in given):
            self._input = self.training.digest(given[0], False)

    def _step(self, optimizer: Optimizer, moment: Moment) -> None:
        state, marks = self._state(optimizer), _marks(optimizer)
        if not state.steps:
            held = self.training.held()
            for _, model in self.training.models():
                for each in model.parameters():
                    mark = _mark(each)
                    if mark is not None and id(each) not in held:
                        self._unheld[id(each)] = self.training.digest(each, True), mark
        backwards, state.backwards = self._backwards - state.backwards, self._backwards
        if not marks:
            trains = any(each.requires_grad for each in parameters_of(optimizer))
            if backwards and trains and len(self.training.optimizers) == 1:
                self.training.slip(
                    "stepped-without", "a backward came before it, and no parameter has a gradient"
                )
            state.empty += trains
            if backwards and state.empty == _EMPTY and not state.reached:
                self._ungraded(optimizer)
            return
        if state.scaled and not moment.inside("scaler_step"):
            self.training.slip("stepped-scaled", "the gradients are those of a scaled loss")
        if state.clips:  # a program may clip in some steps only, and write to what was clipped
            clipped = [key for key in marks if key in state.clipped]
            if not clipped:
                self.training.slip("clip-missed", "a backward came after the clipping")
            elif len(clipped) < len(marks) and not self._shares(state, clipped, marks):
                self.training.slip(
                    "clipped-partly", f"{len(clipped)} of {len(marks)} gradients are clipped"
                )
        if marks == state.stepped and not moment.inside("step"):
            self.training.slip(
                "stepped-again", f"{len(marks)} gradients are those of the last step"
            )
        windows = state.windows
        if not state.used and state.count:
            self._say("window-short", windows.took(state.count))
        self._say("gradients-dropped", windows.ended(marks == state.left))
        if len(state.losses) > 1:
            self.training.slip("partly-scaled", "one loss is scaled, and another is not")
        if state.steps == 1:
            self._reached(optimizer, state)

    def _shares(self, state: _State, clipped: Collection[int], marks: Collection[int]) -> bool:
        """Whether ranks share the clipped gradients, and each has the others alone.

        A norm with gradients of one rank alone would be another one on each rank.  Ranks share
        what a wrapper of torch reduces, and what somebody wrote to after the backward.
        """
        if not several_ranks():
            return False
        shared = state.shared | {
            id(each)
            for _, model in self.training.models()
            for module in model.modules()
            if isinstance(module, nn.parallel.DistributedDataParallel)
            for each in module.parameters()
        }
        return all((key in shared) == (key in clipped) for key in marks)

    def _say(self, name: str, detail: str) -> None:
        if detail:
            self.training.slip(name, detail)

    def _ungraded(self, optimizer: Optimizer) -> None:
        """Whether no parameter has ever had a gradient, of one of several optimizers."""
        if len(self.training.optimizers) > 1:
            self.training.slip(
                "never-graded", f"{type(optimizer).__name__} has stepped {_EMPTY} times without"
            )

    def ended(self) -> None:
        for state, every, left in self._late:
            still = [size for key, size in left.items() if key not in state.reached]
            if sum(still) > _PART * every:
                self.training.slip(
                    "never-reached", f"{len(still)} parameters have had no gradient until the end"
                )

    def _reached(self, optimizer: Optimizer, state: _State) -> None:
        """Whether losses have reached the parameters, judged once, at the second step."""
        wanted = [each for each in parameters_of(optimizer) if each.requires_grad]
        left = [each for each in wanted if each.grad is None and id(each) not in state.reached]
        ran = {id(each) for part in self._parts for each in own_parameters(part).values()}
        used = [each for each in left if id(each) in ran]
        missing, unused, every = (
            sum(each.numel() for each in group) for group in (used, left, wanted)
        )
        if missing > _PART * every:
            self.training.slip(
                "never-reached", f"{len(used)} of {len(wanted)} parameters have had no gradient"
            )
        elif unused > _PART * every:  # a part may be used from a later step on
            self._late.append((state, every, {id(each): each.numel() for each in left}))
        held = self.training.held()
        if not state.reached & held:
            return
        for name, model in self.training.models():
            own = list(model.named_parameters())
            trained = [each for each in own if id(each[1]) in state.reached]
            graded = [each for each in own if each[1].requires_grad and self._is_graded(each[1])]
            alone = [
                path for path, each in graded if id(each) not in held and not self._is_updated(each)
            ]
            # Many fine-tune by giving the optimizer the last layers only.
            if trained and alone and alone[-1] == graded[-1][0]:
                more = f" and {len(alone) - 1} more" * (len(alone) > 1)
                self.training.slip(
                    "held-by-nobody", f"{name}.{alone[-1]}{more} of {len(own)} parameters"
                )

    def _is_updated(self, parameter: torch.Tensor) -> bool:
        """Whether the program has changed a parameter since the first step.

        Ranks that share the work of an optimizer send each other what they have updated.
        """
        before, _ = self._unheld.get(id(parameter), (None, None))
        return before is not None and before != self.training.digest(parameter, True)

    def _is_graded(self, parameter: torch.Tensor) -> bool:
        """Whether a parameter has a gradient, and none that another training has left there."""
        _, before = self._unheld.get(id(parameter), (None, None))
        return parameter.grad is not None and _mark(parameter) != before


def _marks(optimizer: Optimizer) -> dict[int, _Mark]:
    """The mark of each gradient, by the id of its parameter."""
    every = {id(each): _mark(each) for each in parameters_of(optimizer)}
    return {key: mark for key, mark in every.items() if mark is not None}


def _mark(parameter: torch.Tensor) -> _Mark | None:
    gradient = parameter.grad
    if gradient is None:
        return None
    # What a DTensor holds is written to, and not the DTensor.
    return _Mark(ref(gradient), version_of(local_part(gradient, gradient)))


def _all_zero(optimizer: Optimizer) -> bool:
    for parameter in parameters_of(optimizer):
        gradient = parameter.grad
        if gradient is None:
            continue
        try:
            part = local_part(gradient, gradient)  # no communication because of a question
            if part.is_sparse or bool(torch.count_nonzero(part)):
                return False
        except (RuntimeError, NotImplementedError):
            return False
    return True
