"""Watches what data sets hold, and which of their batches are used again."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sized
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

import torch
import xxhash
from torch.utils.data import DataLoader, SequentialSampler, Subset, WeightedRandomSampler

from pytest_trainsafe.compat.tensors import base_of, version_of
from pytest_trainsafe.judges.learn.instrument.slips.data import shuffles, tensors_in
from pytest_trainsafe.judges.learn.instrument.slips.moments import Moment, Training, Watcher

#: The most tensors of a data set that are looked at, and the largest array, in elements.
_MANY, _LARGE = 4096, 1 << 20
#: Batches of an iteration whose content is compared, and whose fetch may write to arrays.
_FIRST = 2


@dataclass(slots=True)
class _Of:
    """A loader.

    `started` counts its iterations and `read` the batches of the last one, which `ended` says is
    exhausted.  `first` is the first batch of it, and `used` the round in which a model was trained
    with that.  `digest` is a hash of the batch before.
    """

    started: int = 0
    read: int = 0
    ended: bool = False
    first: list[weakref.ref[torch.Tensor]] = field(default_factory=list)
    used: int | None = None
    digest: int = 0


class Stored(Watcher):
    """Sees iterations of loaders, models that run, and backwards."""

    kinds = ("iter", "next", "module", "backward", "optimizer_made")

    def __init__(self, training: Training) -> None:
        super().__init__(training)
        self._loaders: WeakKeyDictionary[DataLoader[Any], _Of] = WeakKeyDictionary()
        self._of_iterator: WeakKeyDictionary[Any, DataLoader[Any]] = WeakKeyDictionary()
        self._last: DataLoader[Any] | None = None
        #: The examples that the training reads, of which data set.
        self._trains: tuple[Any, frozenset[int]] | None = None

    def entered(self, moment: Moment) -> None:
        if moment.kind == "next":
            loader = self._of_iterator.get(moment.thing)
            state = self._loaders[loader] if loader is not None else _Of()
            # What is written in the first iteration may be a cache that is filled.
            if loader is not None and state.started > 1 and state.read < _FIRST:
                moment.given["held"] = None if loader.num_workers else _state(loader)
        elif moment.kind == "module":
            if moment.outermost and torch.is_grad_enabled() and moment.thing.training:
                self._runs(moment)
        elif moment.kind == "optimizer_made":
            self._trains = None  # another fold has other parts
        elif self._last is not None and shuffles(self._last.sampler):
            self._trains = _examples(self._last)

    def left(self, moment: Moment) -> None:
        if moment.kind == "next":
            loader = self._of_iterator.get(moment.thing)
            if loader is None:
                return
            state = self._loaders[loader]
            if moment.failed:
                state.ended = True
            else:
                self._batch(moment, loader, state)
        elif moment.kind == "iter" and not moment.failed:
            loader = moment.thing
            state = self._loaders.setdefault(loader, _Of())
            state.started += 1
            state.read, state.ended, state.first, state.used = 0, False, [], None
            self._of_iterator[moment.result] = loader
            self._overlaps(loader)
            self._weighted(loader)

    def _batch(self, moment: Moment, loader: DataLoader[Any], state: _Of) -> None:
        self._last = loader
        state.read += 1
        before = moment.given.get("held")
        if before is not None and before != _state(loader):
            name = type(loader.dataset).__name__
            self.training.slip("data-overwritten", f"reading a batch of {name} changes what it has")
        tensors = tensors_in(moment.result)
        if state.read == 1:
            state.first = [weakref.ref(each) for each in tensors]
        if loader.num_workers > 1 and state.read <= _FIRST and state.started <= _FIRST and tensors:
            digest = self.training.digest(tensors[0], False)
            if state.read == _FIRST and digest == state.digest != 0:
                self.training.slip(
                    "batches-doubled",
                    f"the first batches of {loader.num_workers} workers are equal",
                )
            state.digest = digest

    def _runs(self, moment: Moment) -> None:
        """Whether a model is trained with the first batch of an iteration that has ended."""
        given = {id(each) for each in _given((*moment.args, *moment.kwargs.values()))}
        now = self.training.rounds
        for loader, state in self._loaders.items():
            if not state.first or not given & {id(each()) for each in state.first}:
                continue
            used, state.used = state.used, now
            # Not one batch alone, as in a test that a model can fit it.
            if state.ended and used is not None and used < now - 1 and shuffles(loader.sampler):
                self.training.slip(
                    "batches-reused", "the first batch of an iteration that has ended"
                )
            return

    def _overlaps(self, loader: DataLoader[Any]) -> None:
        mine = _examples(loader)
        if (
            self._trains is None
            or mine is None
            or not isinstance(loader.sampler, SequentialSampler)
        ):
            return
        if mine[0] is not self._trains[0]:
            return
        both, counts = mine[1] & self._trains[1], (len(mine[1]), len(self._trains[1]))
        if 0 < len(both) < min(counts):
            self.training.slip(
                "validation-overlaps",
                f"{len(both)} of {counts[0]} examples are among the {counts[1]} of the training",
            )

    def _weighted(self, loader: DataLoader[Any]) -> None:
        sampler, dataset = loader.sampler, loader.dataset
        if isinstance(sampler, WeightedRandomSampler) and isinstance(dataset, Sized):
            counts = len(sampler.weights), len(dataset)
            if counts[0] != counts[1]:
                self.training.slip(
                    "weights-per-class", f"{counts[0]} weights, and {counts[1]} examples"
                )


def _examples(loader: DataLoader[Any]) -> tuple[Any, frozenset[int]] | None:
    """The data set of which a loader reads a part, and the part."""
    part = loader.dataset
    return (part.dataset, frozenset(part.indices)) if isinstance(part, Subset) else None


def _state(loader: DataLoader[Any]) -> tuple[int, int]:
    """What changes if the tensors of a data set are written to, and if its arrays are."""
    held = list(_held(loader.dataset))
    versions = sum(version_of(each) for each in held if isinstance(each, torch.Tensor))
    hashed = xxhash.xxh3_64()
    for each in held:
        if not isinstance(each, torch.Tensor) and each.size <= _LARGE:
            hashed.update(each.tobytes())
    return versions, hashed.intdigest()


def _held(dataset: Any) -> Iterator[Any]:
    """The tensors and arrays that a data set has as attributes, or in containers of these."""
    while isinstance(dataset, Subset):
        dataset = dataset.dataset
    numpy = sys.modules.get("numpy")
    kinds = (torch.Tensor,) if numpy is None else (torch.Tensor, numpy.ndarray)
    waiting: list[tuple[Any, int]] = [(getattr(dataset, "__dict__", dataset), 0)]
    count = 0
    while waiting and count < _MANY:
        thing, depth = waiting.pop()
        if isinstance(thing, kinds):
            if isinstance(thing, torch.Tensor) or thing.dtype != object:
                count += 1
                yield thing
        elif depth < 3 and isinstance(thing, Mapping | list | tuple):
            parts: Iterable[Any] = thing.values() if isinstance(thing, Mapping) else thing
            waiting += [(each, depth + 1) for each in list(parts)[:_MANY]]


def _given(things: Iterable[object]) -> Iterator[torch.Tensor]:
    """The tensors in arguments, and those that they are views of."""
    for thing in things:
        for each in tensors_in(thing):
            yield each
            base = base_of(each)
            if base is not None:
                yield base
