"""Watches the batches of data loaders, and the seeds that a program sets."""

from __future__ import annotations

import inspect
import random
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

import torch
from torch.utils.data import BatchSampler, DataLoader, SequentialSampler, Subset

from pytest_trainsafe.judges.learn.instrument.slips.moments import Moment, Training, Watcher

#: Labels of fewer examples may be equal by chance; shorter loaders may begin alike by chance.
_LABELS, _BATCHES = 4, 3
#: Shorter permutations may be drawn again by chance.
_LONG = 12
#: The most first batches that are remembered, and the most tensors of a batch that are looked at.
_MANY, _TENSORS = 4096, 8


@dataclass(slots=True)
class _Of:
    """A loader: its iteration's batches, and what the one before began with."""

    batches: int = 0
    before: int = 0
    first: int = 0
    labels: Any = None
    shuffled: bool = False
    sequential: bool = False
    long: bool = False
    backwards: int = -1
    #: A hash of the order that its sampler drew last, and whether its batches are labels alone.
    order: int = 0
    labelling: bool = False
    seen: set[int] = field(default_factory=set)


@dataclass(slots=True)
class _Orders:
    """The orders that a training has drawn, by their hashes, each with its first input of a model.

    `earlier` has those of the trainings before, which count again if this one resumes one of them.
    A training that is `resumed` may draw an order again, to go on in its middle.  `drawn` is the
    last one, until a model runs, and `doubtful` says that it was drawn before.
    """

    own: dict[int, int] = field(default_factory=dict)
    earlier: dict[int, int] = field(default_factory=dict)
    resumed: bool = False
    drawn: int = 0
    doubtful: bool = False

    def begin(self) -> None:
        """Another training begins."""
        self.earlier.update(self.own)
        self.own = {}

    def resume(self) -> None:
        """The state of an optimizer is loaded."""
        self.own.update(self.earlier)
        self.resumed = True

    def repeats(self, digest: int) -> bool:
        """Note an order; whether the training has drawn it before, for its beginning."""
        again = digest in self.own
        self.drawn, self.doubtful = digest, again and self.resumed
        self.resumed = False
        if len(self.own) < _MANY:
            self.own.setdefault(digest, 0)
        return again and not self.doubtful

    def runs(self, given: int) -> bool:
        """A model runs; whether it begins with an order from its beginning once more."""
        again = self.doubtful and self.own.get(self.drawn) == given
        if self.own.get(self.drawn) == 0:
            self.own[self.drawn] = given
        self.drawn, self.doubtful = 0, False
        return again


class Data(Watcher):
    """Sees iterations of loaders, their batches, backwards and seeds."""

    kinds = (
        *("iter", "next", "backward", "seed", "restored", "step", "permuted"),
        *("optimizer_made", "optimizer_load", "module"),
    )

    def __init__(self, training: Training) -> None:
        super().__init__(training)
        self._loaders: WeakKeyDictionary[DataLoader[Any], _Of] = WeakKeyDictionary()
        self._of_iterator: WeakKeyDictionary[Any, DataLoader[Any]] = WeakKeyDictionary()
        self._firsts, self._orders = _Orders(), _Orders()
        self._alike: WeakSet[DataLoader[Any]] = WeakSet()
        self._seeds: set[int] = set()
        self._again: int | None = None
        self._backwards = 0
        self._last: DataLoader[Any] | None = None

    def entered(self, moment: Moment) -> None:
        if moment.kind == "module":
            if (self._orders.drawn or self._firsts.drawn) and torch.is_grad_enabled():
                self._goes_on(moment)
        elif moment.kind == "backward":
            self._backwards += 1
        elif moment.kind == "step" and self._again is not None:
            if moment.thing in self.training.stepped:  # another fold may begin with the same seed
                self.training.slip("seeded-again", f"the seed {self._again} was set before")
            self._again = None

    def left(self, moment: Moment) -> None:
        if moment.failed:
            return
        if moment.kind == "seed":
            self._seed(moment.argument(0, "seed"))
        elif moment.kind == "permuted":
            self._permuted(moment)
        elif moment.kind == "optimizer_made":
            if moment.outermost and self.training.begins(moment.thing):
                self._firsts.begin()
                self._orders.begin()
        elif moment.kind == "optimizer_load":
            self._firsts.resume()
            self._orders.resume()
        elif moment.kind == "restored":
            self._again = None  # as fork_rng does
        elif moment.kind == "iter":
            self._begins(moment.thing, moment.result)
        elif moment.kind == "next":
            loader = self._of_iterator.get(moment.thing)
            if loader is not None:
                self._batch(loader, self._loaders[loader], moment.result)

    def _seed(self, seed: object) -> None:
        if not isinstance(seed, int):
            return
        if seed in self._seeds and self.training.rounds:
            self._again = seed
        self._seeds.add(seed)

    def _goes_on(self, moment: Moment) -> None:
        """Whether a model gets the first examples of an order that was drawn before."""
        given = tensors_in([*moment.args, *moment.kwargs.values()])
        if not moment.outermost or not given:
            return
        digest = self.training.digest(given[0], False)
        again = [each.runs(digest) for each in (self._orders, self._firsts)]
        if any(again):
            self.training.slip("order-repeated", "the training goes on with the same examples")

    def _permuted(self, moment: Moment) -> None:
        """Whether a permutation is drawn once more.  Loaders have a rule of their own."""
        order = moment.result
        if not isinstance(order, torch.Tensor):
            return
        around = [each for each in moment.around if each[0] in ("iter", "next")]
        if around:
            kind, thing = around[-1]
            loader = thing if kind == "iter" else self._of_iterator.get(thing)
            if isinstance(loader, DataLoader):
                state = self._loaders.setdefault(loader, _Of())
                state.order = self.training.digest(order, True)
            return
        if order.numel() < _LONG or _caller().startswith("torch."):
            return  # as `random_split` draws the same parts again
        if self._orders.repeats(self.training.digest(order, True)) and self.training.rounds:
            self.training.slip(
                "order-repeated", f"randperm({order.numel()}) gave this order before"
            )

    def _begins(self, loader: DataLoader[Any], iterator: object) -> None:
        state = self._loaders.setdefault(loader, _Of())
        state.before, state.batches = state.batches, 0
        sampler = getattr(loader, "sampler", None)
        # A sampler of batches of its own may group them by a number.
        plain = type(getattr(loader, "batch_sampler", None)) is BatchSampler
        state.sequential = plain and isinstance(sampler, SequentialSampler)
        state.shuffled = shuffles(sampler)
        if _workers_share(loader) and loader not in self._alike:
            self._alike.add(loader)
            name = type(loader.dataset).__name__
            self.training.slip("workers-alike", f"{loader.num_workers} workers copy that of {name}")
        try:
            state.long = len(loader) >= _BATCHES
        except TypeError:
            state.long = False
        try:
            self._of_iterator[iterator] = loader
        except TypeError:
            return

    def _batch(self, loader: DataLoader[Any], state: _Of, batch: object) -> None:
        tensors = tensors_in(batch)
        state.batches += 1
        feeds = self._last is loader and self._backwards > state.backwards >= 0
        if state.batches == 1 and tensors and state.long:
            first, before = self.training.digest(tensors[0], False), state.first
            state.first = first
            if first and state.shuffled:
                if self._firsts.repeats(first):
                    self.training.slip("order-repeated", "an earlier epoch began with this batch")
            elif first and first == before and state.before == 1 and feeds:
                self.training.slip("batch-repeated", "the iteration before began with this batch")
        state.labelling = len(tensors) == 1 and _are_labels(tensors[0])
        if state.order and state.shuffled:
            self._together(loader, state)
        label = _label(tensors)
        if label is not None and state.sequential:
            state.seen.add(label)
        sorted_ = len(state.seen) > 1  # all examples may be of one class
        if label is not None and state.labels is not None and sorted_ and feeds:
            self.training.slip("one-label", f"all labels of the batch are {label}")
        state.labels, state.backwards, self._last = label, self._backwards, loader

    def _together(self, loader: DataLoader[Any], state: _Of) -> None:
        """Whether a loader is read in step with one of labels, and has another order."""
        for other, its in self._loaders.items():
            if other is loader or not its.shuffled or its.batches != state.batches:
                continue
            apart = its.order not in (0, state.order) and its.labelling is not state.labelling
            if apart and _count(other) == _count(loader) != 0 and self._last is other:
                self.training.slip(
                    "orders-apart", f"both loaders have {_count(loader)} examples, in two orders"
                )


def _count(loader: DataLoader[Any]) -> int:
    try:
        return len(loader.dataset)  # type: ignore[arg-type]
    except TypeError:
        return 0


def _are_labels(tensor: torch.Tensor) -> bool:
    return tensor.dtype == torch.int64 and tensor.dim() == 1


def _workers_share(loader: DataLoader[Any]) -> bool:
    """Whether workers draw from copies of one generator: an attribute that `__getitem__` reads."""
    if loader.num_workers < 2 or loader.worker_init_fn is not None:
        return False
    dataset: Any = loader.dataset
    while isinstance(dataset, Subset):
        dataset = dataset.dataset
    names = _names_in(type(dataset), "__getitem__")
    own = vars(dataset) if hasattr(dataset, "__dict__") else {}
    return any(isinstance(own.get(name), _generators()) for name in names)


def _names_in(cls: type, method: str) -> set[str]:
    """The names that a method reads, and the methods of its class that it may call."""
    found: set[str] = set()
    waiting = [method]
    while waiting:
        code = getattr(getattr(cls, waiting.pop(), None), "__code__", None)
        names = set(code.co_names) - found if code is not None else set()
        found |= names
        waiting += names
    return found


def _generators() -> tuple[type, ...]:
    numpy = sys.modules.get("numpy")
    of_numpy = () if numpy is None else (numpy.random.Generator, numpy.random.RandomState)
    return (random.Random, torch.Generator, *of_numpy)


def _caller() -> str:
    """The module of the function that made the observed call."""
    frame = inspect.currentframe()
    while frame is not None:
        name = str(frame.f_globals.get("__name__", ""))
        if not name.startswith("pytest_trainsafe.judges.learn.instrument"):
            return name
        frame = frame.f_back
    return ""


def is_called_by(function: str) -> bool:
    """Whether the observed call is made in a function of torch with this name."""
    frame = inspect.currentframe()
    while frame is not None:
        name = str(frame.f_globals.get("__name__", ""))
        if not name.startswith("pytest_trainsafe.judges.learn.instrument"):
            return name.startswith("torch.") and frame.f_code.co_name == function
        frame = frame.f_back
    return False


def shuffles(sampler: object) -> bool:
    """Whether a sampler draws a random order."""
    if "Random" in type(sampler).__name__:
        return True
    return getattr(sampler, "shuffle", False) is True


def tensors_in(batch: object) -> list[torch.Tensor]:
    """The first tensors of a batch: a tensor, or a list, a tuple or a dict of them."""
    if isinstance(batch, torch.Tensor):
        return [batch]
    values: Iterable[object] = ()
    if isinstance(batch, dict):
        values = batch.values()
    elif isinstance(batch, list | tuple):
        values = batch
    return [each for each in values if isinstance(each, torch.Tensor)][:_TENSORS]


def _label(tensors: list[torch.Tensor]) -> int | None:
    """The one label of a batch; None if it has several, or none."""
    for each in tensors[1:]:
        if each.dtype == torch.int64 and each.dim() == 1 and each.numel() >= _LABELS:
            return int(each[0]) if bool((each == each[0]).all()) else None
    return None
