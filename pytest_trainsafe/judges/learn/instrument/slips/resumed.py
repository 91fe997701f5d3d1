"""Watches what a checkpoint brings back: for which parameter, and the random generator."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any
from weakref import WeakSet

import torch
from torch.optim import Optimizer
from torch.utils.data import Subset

from pytest_trainsafe.judges.learn.instrument.slips.data import is_called_by
from pytest_trainsafe.judges.learn.instrument.slips.moments import (
    Moment,
    Training,
    Watcher,
    parameters_of,
)

#: The elements of a tensor that tell it from others, and the most tensors that are remembered.
_FEW, _MANY = 8, 1 << 14
#: Shorter orders may be drawn again by chance.
_LONG = 12
#: How deep a checkpoint is searched for the state of a generator.
_DEPTH = 3

_Print = tuple[object, ...]


class Resumed(Watcher):
    """Sees states of optimizers and generators that are taken and loaded, and steps."""

    kinds = (
        *("optimizer_state", "optimizer_load", "file_load", "rng_read", "restored", "step"),
        *("permuted", "iter"),
    )

    def __init__(self, training: Training) -> None:
        super().__init__(training)
        #: The name of the parameter that a tensor of an optimizer's state belongs to.
        self._names: dict[_Print, str] = {}
        self._loaded: WeakSet[Optimizer] = WeakSet()
        #: States of the generator that were read, and whether one of them was in a file.
        self._states: set[int] = set()
        self._waits = self._resumes = False
        #: The last two orders by which so many examples were split into parts at random.
        self._splits: dict[int, list[torch.Tensor]] = {}
        #: The data of the loader that was iterated last.
        self._data: Callable[[], object] = lambda: None

    def entered(self, moment: Moment) -> None:
        if moment.kind == "optimizer_load":
            # An optimizer that goes back to an earlier state of its own is not resumed.
            moment.given["back"] = bool(moment.thing.state)
        if moment.kind != "step" or not moment.outermost:
            return
        if moment.thing in self._loaded:
            self._loaded.discard(moment.thing)
            self._compare(moment.thing)
        if self._resumes:
            self._split_again()
        if self._waits and self._resumes:
            self.training.slip("generator-not-resumed", "the file has the state of the generator")
        self._waits = self._resumes = False

    def left(self, moment: Moment) -> None:
        if moment.failed or not moment.outermost:
            return
        if moment.kind == "optimizer_state":
            for name, key in self._prints(moment.thing):
                if len(self._names) < _MANY:
                    self._names[key] = name
        elif moment.kind == "optimizer_load":
            self._loaded.add(moment.thing)
            self._resumes |= not moment.given["back"]
        elif moment.kind == "rng_read":
            self._states.add(self.training.digest(moment.result, True))
        elif moment.kind == "restored":
            self._waits = False
        elif moment.kind == "permuted":
            if isinstance(moment.result, torch.Tensor) and is_called_by("random_split"):
                known = self._splits.get(moment.result.numel(), [])
                self._splits[moment.result.numel()] = [*known[-1:], moment.result]
        elif moment.kind == "iter":
            data: Any = getattr(moment.thing, "dataset", None)
            self._data = weakref.ref(data) if isinstance(data, Subset) else lambda: None
        elif moment.kind == "file_load" and self._states:
            self._waits |= self._holds(moment.result, _DEPTH)

    def _split_again(self) -> None:
        """Whether a training goes on with data that were split anew, by another order."""
        data = self._data()
        for count, (*before, now) in self._splits.items():
            if not before or count < _LONG or torch.equal(before[0], now):
                continue
            if isinstance(data, Subset) and _is_part(data.indices, now.tolist()):
                self.training.slip(
                    "validation-overlaps", f"{count} examples are split anew, by another order"
                )
        self._splits.clear()

    def _holds(self, thing: object, depth: int) -> bool:
        """Whether a checkpoint has a state of the generator that was read before."""
        if isinstance(thing, torch.Tensor):
            plain = thing.dtype == torch.uint8 and thing.dim() == 1
            return plain and self.training.digest(thing, True) in self._states
        parts: object = thing.values() if isinstance(thing, Mapping) else thing
        if not depth or isinstance(parts, str) or not isinstance(thing, Mapping | list | tuple):
            return False
        return any(self._holds(each, depth - 1) for each in parts)  # type: ignore[attr-defined]

    def _compare(self, optimizer: Optimizer) -> None:
        """Whether states were loaded for other parameters than they were taken from."""
        wrong = [
            (name, self._names[key])
            for name, key in self._prints(optimizer)
            if not _same(self._names.get(key, name), name)
        ]
        if len(wrong) > 1:
            name, other = wrong[0]
            self.training.slip("state-permuted", f"{name} has the state of {other}")

    def _prints(self, optimizer: Optimizer) -> Iterator[tuple[str, _Print]]:
        """The names of an optimizer's parameters, each with the print of a tensor of its state."""
        names = {
            id(each): path
            for _, model in self.training.models()
            for path, each in model.named_parameters()
        }
        for each in parameters_of(optimizer):
            state = optimizer.state.get(each) if id(each) in names else None
            for value in (state or {}).values():
                if type(value) is torch.Tensor and value.dim() and value.shape == each.shape:
                    key = _print(value)
                    if key is not None:
                        yield names[id(each)], key
                    break


def _same(one: str, other: str) -> bool:
    """Whether two names are of one parameter, which a wrapper may give a prefix."""
    return one == other or one.endswith(f".{other}") or other.endswith(f".{one}")


def _print(tensor: torch.Tensor) -> _Print | None:
    """What tells a tensor from others; None if it says nothing."""
    flat = tensor.detach().flatten()
    some = flat[:: max(1, flat.numel() // _FEW)][:_FEW].tolist()
    return (tuple(tensor.shape), *some) if any(some) else None


def _is_part(indices: Sequence[int], order: list[int]) -> bool:
    """Whether the examples of these numbers follow one another in an order."""
    first = order.index(indices[0]) if len(indices) and indices[0] in order else len(order)
    return order[first : first + len(indices)] == list(indices) != []
