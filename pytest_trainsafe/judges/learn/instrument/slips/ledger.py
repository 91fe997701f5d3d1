"""Passes patched calls to the watchers of slips, and reports what they find."""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from pytest_trainsafe.judges.learn.events.events import TensorFacts
from pytest_trainsafe.judges.learn.events.slips import COMPARED, GRAPH, NOTED, SLIP, TRAINING
from pytest_trainsafe.judges.learn.instrument.facts import Objects
from pytest_trainsafe.judges.learn.instrument.patching.catalogue import Target
from pytest_trainsafe.judges.learn.instrument.patching.selection import Wanted
from pytest_trainsafe.judges.learn.instrument.slips.copies import Copies
from pytest_trainsafe.judges.learn.instrument.slips.data import Data
from pytest_trainsafe.judges.learn.instrument.slips.gradients import Gradients
from pytest_trainsafe.judges.learn.instrument.slips.inputs.carried import Carried
from pytest_trainsafe.judges.learn.instrument.slips.inputs.criteria import Criteria
from pytest_trainsafe.judges.learn.instrument.slips.inputs.ends import Ends
from pytest_trainsafe.judges.learn.instrument.slips.inputs.influence import Influence
from pytest_trainsafe.judges.learn.instrument.slips.inputs.masks import Masks
from pytest_trainsafe.judges.learn.instrument.slips.inputs.penalties import Penalties
from pytest_trainsafe.judges.learn.instrument.slips.inputs.products import Products
from pytest_trainsafe.judges.learn.instrument.slips.inputs.reach import Reach
from pytest_trainsafe.judges.learn.instrument.slips.inputs.stored import Stored
from pytest_trainsafe.judges.learn.instrument.slips.inputs.tokens import Tokens
from pytest_trainsafe.judges.learn.instrument.slips.loading import Loading
from pytest_trainsafe.judges.learn.instrument.slips.losses import Losses
from pytest_trainsafe.judges.learn.instrument.slips.models import Models
from pytest_trainsafe.judges.learn.instrument.slips.moments import (
    Moment,
    Training,
    Watcher,
    kind_of,
)
from pytest_trainsafe.judges.learn.instrument.slips.notes.changes import Changes
from pytest_trainsafe.judges.learn.instrument.slips.notes.losses import LossGraphs
from pytest_trainsafe.judges.learn.instrument.slips.objects.attributes import Attributes
from pytest_trainsafe.judges.learn.instrument.slips.objects.settings import Settings
from pytest_trainsafe.judges.learn.instrument.slips.objects.starts import Starts
from pytest_trainsafe.judges.learn.instrument.slips.parts import Parts
from pytest_trainsafe.judges.learn.instrument.slips.ranks.counted import Counted
from pytest_trainsafe.judges.learn.instrument.slips.ranks.divided import Divided
from pytest_trainsafe.judges.learn.instrument.slips.ranks.held import Held
from pytest_trainsafe.judges.learn.instrument.slips.ranks.limits import Limits
from pytest_trainsafe.judges.learn.instrument.slips.ranks.replicas import Replicas
from pytest_trainsafe.judges.learn.instrument.slips.ranks.sent import Sent
from pytest_trainsafe.judges.learn.instrument.slips.ranks.shared import Shared
from pytest_trainsafe.judges.learn.instrument.slips.ranks.summed import Summed
from pytest_trainsafe.judges.learn.instrument.slips.recompute import Recompute
from pytest_trainsafe.judges.learn.instrument.slips.resumed import Resumed
from pytest_trainsafe.judges.learn.instrument.slips.schedules import Schedules
from pytest_trainsafe.judges.learn.instrument.slips.steps.examples import Examples
from pytest_trainsafe.judges.learn.instrument.slips.steps.lives import Lives
from pytest_trainsafe.judges.learn.instrument.slips.steps.modes import TogetherInTraining
from pytest_trainsafe.judges.learn.instrument.slips.steps.revived import Revived
from pytest_trainsafe.judges.learn.instrument.slips.steps.roots import Roots
from pytest_trainsafe.judges.learn.instrument.slips.steps.still import Still
from pytest_trainsafe.judges.learn.instrument.slips.steps.thawed import Thawed
from pytest_trainsafe.judges.learn.instrument.slips.steps.updates import Updates
from pytest_trainsafe.judges.learn.instrument.slips.weights import Weights
from pytest_trainsafe.judges.learn.instrument.state.variables import Variables

#: What a watcher's own question to a damaged or unusual object may raise.
_UNREADABLE = (RuntimeError, TypeError, AttributeError, LookupError, ValueError)


class Ledger:
    """Watches the calls of a process.

    `tell` is called with the name of each slip, and with what happened, at most once in a round for
    each slip.  The other arguments are those of `moments.Training`.
    """

    def __init__(
        self,
        tell: Callable[[str, str], None],
        models: Callable[[], Iterator[tuple[str, nn.Module]]],
        digest: Callable[[torch.Tensor, bool], int],
        weights: Callable[[], Iterator[tuple[str, torch.Tensor, TensorFacts]]],
        graph: Callable[[str, str], None] | None = None,
        shared: Callable[[str, str], None] | None = None,
        note: Callable[[str, str], None] | None = None,
    ) -> None:
        self._tell = tell
        self._training = Training(self._slip, models, digest, weights, graph, shared, note)
        self._told: dict[str, int] = {}
        gradients, influence = Gradients(self._training), Influence(self._training)
        # The others read what it notes.
        examples = Examples(self._training)
        others: tuple[type[Watcher], ...] = (
            *(Losses, Models, Schedules, Data, Loading, Recompute, Replicas, Weights),
            *(Criteria, Stored, Penalties, Starts, Settings, Attributes, TogetherInTraining),
            *(Updates, Lives, Roots, Masks, Reach, Parts, Resumed, Shared),
            *(Products, Revived, Carried, Ends, Summed, Held, Divided),
            *(LossGraphs, Changes, Thawed, Limits, Sent, Counted),
        )
        tokens = Tokens(self._training, influence)
        self._watchers: list[Watcher] = [examples, gradients, tokens, influence]
        self._watchers += [each(self._training, gradients) for each in (Copies, Still)]
        self._watchers += [each(self._training) for each in others]
        #: What is called at the begin and at the end of calls of a kind.
        self._begins: dict[str, list[Callable[[Moment], None]]] = defaultdict(list)
        self._ends: dict[str, list[Callable[[Moment], None]]] = defaultdict(list)
        for watcher in self._watchers:
            for kind in watcher.kinds:
                if type(watcher).entered is not Watcher.entered:
                    self._begins[kind].append(watcher.entered)
                if type(watcher).left is not Watcher.left:
                    self._ends[kind].append(watcher.left)
        self._kinds: dict[tuple[int, str], str] = {}

    def kind(self, target: Target) -> str:
        """The kind of the calls of a function (`moments.kind_of`)."""
        key = id(target.owner), target.attribute
        found = self._kinds.get(key)
        if found is None:
            found = self._kinds[key] = kind_of(target)
        return found

    def entered(
        self,
        kind: str,
        api: str,
        thing: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        outer: Moment | None,
    ) -> Moment:
        """A call of a kind begins, in the call `outer`.  `args` has no object of a method."""
        moment = Moment(kind, api, thing, args, kwargs, outer)
        if kind in ("step", "zero_grad") and isinstance(thing, Optimizer):
            self._training.optimizers.add(thing)
        _ask(self._begins[kind], moment)
        return moment

    def left(self, moment: Moment, result: object, failed: bool) -> None:
        """The call of a moment returned, or raised."""
        moment.result, moment.failed = result, failed
        _ask(self._ends[moment.kind], moment)
        if moment.kind == "step" and not failed and moment.outermost:
            self._training.rounds += 1
            if isinstance(moment.thing, Optimizer):
                self._training.stepped.add(moment.thing)

    def made(self, thing: object) -> None:
        """An object was made."""
        if isinstance(thing, Optimizer):
            self._training.made(thing)

    def ended(self) -> None:
        """The observation ends."""
        for watcher in self._watchers:
            watcher.ended()

    def _slip(self, name: str, detail: str) -> None:
        if self._told.get(name) != self._training.rounds:
            self._told[name] = self._training.rounds
            self._tell(name, detail)


def watched(
    wanted: Wanted,
    slip: Callable[[str, str], None],
    text: Callable[[str, str], None],
    variables: Variables,
    objects: Objects,
) -> Ledger | None:
    """The Ledger of an observation; None if nothing of what it says is to be recorded."""
    draws, compares, notes, slips = (
        any(wanted.takes(TRAINING, TRAINING, name) for name in names)
        for names in ((GRAPH,), COMPARED, (NOTED,), (SLIP,))
    )
    if not (draws or compares or notes or slips):
        return None
    return Ledger(
        slip,
        variables.models,
        lambda each, exact: objects.tensor(each, exact)[0].digest,
        variables.weights,
        text if draws else None,
        text if compares else None,
        text if notes else None,
    )


def _ask(watchers: Sequence[Callable[[Moment], None]], moment: Moment) -> None:
    """Passes a moment to watchers; what an unusual object raises is no reason to end a program."""
    for watcher in watchers:
        with contextlib.suppress(*_UNREADABLE):
            watcher(moment)
