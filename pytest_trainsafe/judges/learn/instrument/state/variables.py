"""Finds and names training objects, and notices changes of their attributes.

To follow an object means to record the changes of its attributes.
"""

from __future__ import annotations

import functools
import itertools
import weakref
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader, Sampler

from pytest_trainsafe.compat.modules import own_buffers
from pytest_trainsafe.judges.learn.events.events import Plain, TensorFacts, Value
from pytest_trainsafe.judges.learn.events.setup_text import SETUP, setup_text
from pytest_trainsafe.judges.learn.instrument.describe import Describer, cut
from pytest_trainsafe.judges.learn.instrument.facts import Objects
from pytest_trainsafe.judges.learn.instrument.names import public_name
from pytest_trainsafe.judges.learn.instrument.patching.selection import Wanted
from pytest_trainsafe.judges.learn.instrument.state import plain
from pytest_trainsafe.judges.learn.instrument.state.fingerprint import Fingerprint
from pytest_trainsafe.judges.learn.instrument.state.slots import Slot
from pytest_trainsafe.record.model.names import canonical

#: Called for each change, with the slot and its earlier value; None for a new state.
Changed = Callable[[Slot, Value | None], None]

#: The groups of optimizers that hold a parameter, by the parameter's id.
_Held = Mapping[int, Sequence[str]]

#: The most objects of one kind that are followed.  Further ones are listed as unseen.
MAX_OBJECTS = 64

#: The name of the variables that the program itself defines.
PROGRAM = "program"

_NOTHING_EXACT: frozenset[str] = frozenset()


class Variables:
    """The followed objects of a process: those whose attributes are recorded.

    `wanted` selects the attributes.  Objects are held weakly: an optimizer that the program has
    dropped is forgotten at the end of the step.
    """

    def __init__(self, objects: Objects, describer: Describer, wanted: Wanted) -> None:
        self._objects = objects
        self._describer = describer
        self._wanted = wanted
        self._models: list[tuple[str, weakref.ref[nn.Module]]] = []
        self._others: list[tuple[str, weakref.ref[Any]]] = []
        self._counts: dict[str, int] = {}
        self._slots: dict[tuple[str, str], Slot] = {}
        #: The same in their order, what they held, and the indexes of those of each kind.
        self._listed: tuple[Slot, ...] = ()
        self._fingerprint = Fingerprint()
        self._kinds: dict[str, list[int]] = {}
        #: The slots of buffers, by the buffer's id.
        self._buffers: dict[int, Slot] = {}
        self._program: dict[str, Plain] = {}
        self._names: dict[int, str] = {}
        #: Modules that begin no new model: parts of known models, and losses and the like.
        self._known: weakref.WeakSet[nn.Module] = weakref.WeakSet()
        self._declared: weakref.WeakSet[nn.Module] = weakref.WeakSet()
        self._modules: weakref.WeakKeyDictionary[nn.Module, str] = weakref.WeakKeyDictionary()
        self._loaders: weakref.WeakKeyDictionary[Any, dict[str, int]] = weakref.WeakKeyDictionary()
        self._moment = 0
        self._stale = False
        self._held: tuple[tuple[int, int], ...] = ()
        self.following = not wanted.nothing
        #: Phrases on objects that are not followed.
        self.unseen: dict[str, None] = {}

    # What is followed.

    def name_of_thing(self, thing: object) -> str:
        """The name of a followed optimizer, scheduler and so on; "" for any other object."""
        return next((name for name, reference in self._others if reference() is thing), "")

    def path_of(self, module: nn.Module) -> str:
        """The name of a model, or of a module in its model; the class of an unknown module."""
        for name, reference in self._models:
            if reference() is module:
                return name
        return self._modules.get(module) or public_name(type(module))

    def name_of(self, module: nn.Module) -> str:
        """The name of a module in its model; "" for the model itself and for unknown modules."""
        return self._modules.get(module, "")

    def is_known(self, parameter: object) -> bool:
        """Whether a model that is followed has this parameter; True where nothing is followed."""
        return not self.following or id(parameter) in self._names

    def models(self) -> Iterator[tuple[str, nn.Module]]:
        """The followed models, with their names."""
        for name, reference in self._models:
            module = reference()
            if module is not None:
                yield name, module

    def weights(self) -> Iterator[tuple[str, torch.Tensor, TensorFacts]]:
        """The parameters whose content is recorded, with their names and their last facts."""
        for slot in self._listed:
            tensor = slot.read() if slot.kind == "data" else None
            if isinstance(tensor, torch.Tensor) and slot.value.tensor is not None:
                yield slot.object, tensor, slot.value.tensor

    def never_called(self, called: Container[int]) -> list[str]:
        """The names of the modules that define a forward and whose `id(module)` is not in `called`.

        `called` has the ids of the modules whose calls were seen.
        """
        return [
            name
            for module, name in self._modules.items()
            if name and id(module) not in called and type(module).forward is not nn.Module.forward
        ]

    def model(self, module: nn.Module, prefix: str | None = None) -> None:
        """Follow a model, unless it is followed already.

        With a `prefix`, the module is a part of a larger model, such as a pipeline stage, and
        `prefix` is the name of this part in the larger model.  The prefix is "" if the names of the
        part's modules are already those of the larger model.
        """
        if module in self._known:
            return
        self._known.add(module)
        if next(module.parameters(), None) is None and next(module.buffers(), None) is None:
            return
        inside = set(module.modules())
        if prefix is None and not inside.isdisjoint(self._declared):
            return  # a wrapper or a container of parts whose names are given
        if prefix is not None:
            self._declared.add(module)
        name = "" if prefix is None else f"model.{prefix}".rstrip(".")
        for index, (known, reference) in enumerate(self._models):
            if reference() in inside:  # a part of this model, or a model that is wrapped now
                self._models[index] = known, weakref.ref(module)
                name = known
                break
        else:
            count = len(self._models) + 1
            name = name or ("model" if count == 1 else f"model{count}")
            if count > MAX_OBJECTS:
                self.unseen[f"models after the first {MAX_OBJECTS}"] = None
                return
            self._models.append((name, weakref.ref(module)))
        for path, each in module.named_modules():
            self._known.add(each)
            self._modules[each] = ".".join(filter(None, (prefix, canonical(path))))
        self._stale = True

    def add(self, thing: Any) -> bool:
        """Follow an optimizer, scheduler, scaler, loader or sampler.  Returns whether it is new."""
        if any(reference() is thing for _, reference in self._others):
            return False
        if isinstance(thing, Sampler) and not hasattr(thing, "epoch"):
            return False
        kind, numbered = _kind_of(thing)
        count = self._counts[kind] = self._counts.get(kind, -1) + 1
        if count >= MAX_OBJECTS:
            self.unseen[f"objects named {kind} after the first {MAX_OBJECTS}"] = None
            return False
        name = f"{kind}.{count}" if numbered else kind if not count else f"{kind}{count + 1}"
        self._others.append((name, weakref.ref(thing)))
        self._stale = True
        return True

    def follow(self, name: str, thing: Any) -> None:
        """Follow the attributes of `thing` that are numbers, bools or texts, as "program.NAME"."""
        self._others.append((f"{PROGRAM}.{name}", weakref.ref(thing)))
        self._stale = True

    def set_program(self, name: str, value: Plain) -> None:
        """Set a number, bool or text of the program, which is recorded as `name` of "program"."""
        self._stale |= name not in self._program
        self._program[name] = value

    def loader_counts(self, loader: Any) -> dict[str, int]:
        """The counts of a loader, a dict that the observer updates.

        "epoch" is the index of the current epoch, or -1 before the first epoch.  "batches" is how
        many batches of this epoch were read.
        """
        return self._loaders.setdefault(loader, {"epoch": -1, "batches": 0})

    # What changes.

    def compare(self, changed: Changed, exact: frozenset[str] = _NOTHING_EXACT) -> None:
        """Call `changed` for each followed attribute that changed since it was last read.

        `changed` is called with the attribute's Slot and its earlier value.  Tensors of the kinds
        in `exact` are read even if nothing seems to have written to them.
        """
        if not self.following:
            return
        self._moment += 1
        self._refresh(changed)
        describer, moment = self._describer, self._moment
        indexes = self._fingerprint.changed()
        for kind in exact:
            indexes.update(self._kinds.get(kind, ()))
        for index in sorted(indexes):
            slot = self._listed[index]
            before = slot.look(describer, slot.kind in exact, moment)
            if before is not None:
                changed(slot, before)
        if "state" in exact and self._states() != self._held:
            self._stale = True
            self._refresh(changed)

    def sample(
        self, changed: Changed, sampled: Callable[[Slot], None], fresh: bool = False
    ) -> None:
        """At the end of a step, report unnoticed changes, then call `sampled` for every attribute.

        `fresh` says that nothing ran since the last comparison.  Content that this comparison read
        is then not read again.
        """
        if not self.following:
            return
        self._moment += not fresh
        self._stale = True
        self._refresh(changed)
        describer = self._describer
        for slot in self._listed:
            before = slot.look(describer, True, self._moment)
            if before is not None:
                changed(slot, before)
        for slot in self._listed:
            sampled(slot)

    def rebase(self) -> None:
        """Read all followed attributes without a report, when recording begins after a pause."""
        self._stale = True
        self.sample(lambda slot, before: None, lambda slot: None)

    def compare_buffers(self, module: nn.Module, changed: Changed) -> None:
        """Call `changed` for each own buffer of the module that its forward has written to."""
        for buffer in own_buffers(module).values():
            slot = self._buffers.get(id(buffer))
            if slot is not None:
                before = slot.look(self._describer, True, -1)
                if before is not None:
                    changed(slot, before)

    def _states(self) -> tuple[tuple[int, int], ...]:
        """For each followed optimizer, the id of its state dict and the number of its entries."""
        things = [reference() for _, reference in self._others]
        return tuple(
            (id(each.state), len(each.state)) for each in things if isinstance(each, Optimizer)
        )

    def _refresh(self, changed: Changed) -> None:
        """Collect the followed attributes (`Slot`) of all objects again, if some may be new.

        Reads the new attributes.  Reports a new part of an optimizer's state as a change, except in
        the first collection.
        """
        if not self._stale:
            return
        self._stale = False
        self._held = self._states()
        slots: dict[tuple[str, str], Slot] = {}
        for slot in self._all():
            if not self._wanted.takes(slot.object, slot.type, slot.attribute):
                continue
            key = slot.object, slot.attribute
            known = self._slots.get(key)
            if known is not None and known.type == slot.type:
                known.read = slot.read
                slots[key] = known
                if slot.attribute == "in_optimizer":  # the optimizer was found only now
                    known.look(self._describer, False, self._moment)
                elif slot.kind == SETUP:
                    before = known.look(self._describer, False, self._moment)
                    if before is not None:
                        changed(known, before)
                continue
            slot.look(self._describer, True, self._moment)
            slots[key] = slot
            if slot.kind == SETUP or (slot.kind == "state" and self._slots):
                changed(slot, None)
        listed = tuple(slot for slot in slots.values() if slot.kind != SETUP)
        if listed != self._listed:
            self._fingerprint, self._kinds = Fingerprint(), {}
            for index, slot in enumerate(listed):
                self._kinds.setdefault(slot.kind, []).append(index)
        self._slots, self._listed = slots, listed
        self._fingerprint.reads = [slot.read for slot in listed]
        self._buffers = {id(slot.read()): slot for slot in slots.values() if slot.kind == "buffer"}

    def _all(self) -> Iterator[Slot]:
        self._models = [each for each in self._models if each[1]() is not None]
        self._others = [each for each in self._others if each[1]() is not None]
        things = [(name, reference()) for name, reference in self._others]
        optimized: dict[int, list[str]] = {}
        for name, thing in things:
            if isinstance(thing, Optimizer):
                for index, group in enumerate(thing.param_groups):
                    where = f"{name}.param_groups.{index}"
                    for parameter in group["params"]:
                        optimized.setdefault(id(parameter), []).append(where)
        self._names = {}
        for name, reference in self._models:
            module = reference()
            if module is not None:
                yield from self._of_model(name, module, optimized)
        for name, thing in things:
            if isinstance(thing, Optimizer):
                yield from self._of_bare(name, thing, optimized)
                yield from plain.of_optimizer(name, thing, self._objects, self._names)
            elif isinstance(thing, LRScheduler):
                yield from plain.of_scheduler(name, thing)
            elif isinstance(thing, torch.amp.GradScaler):
                yield from plain.of_scaler(name, thing)
            elif isinstance(thing, DataLoader):
                yield from plain.of_loader(name, thing, self.loader_counts(thing))
            elif thing is not None:
                yield from plain.of_object(name, thing)
        for key in self._program:
            yield Slot(PROGRAM, PROGRAM, key, "plain", functools.partial(self._program.get, key))

    def _of_model(self, name: str, module: nn.Module, optimized: _Held) -> Iterator[Slot]:
        every: dict[int, tuple[nn.Parameter, list[str]]] = {}
        for path, parameter in module.named_parameters(remove_duplicate=False):
            names = every.setdefault(id(parameter), (parameter, []))[1]
            names.append(f"{name}.{canonical(path)}")
        for parameter, names in every.values():
            self._names.setdefault(id(parameter), names[0])
            yield from _of_parameter(names, parameter, optimized)
        for path, buffer in module.named_buffers():
            yield Slot(
                f"{name}.{canonical(path)}",
                public_name(type(buffer)),
                "data",
                "buffer",
                _always(buffer),
            )

    def _of_bare(self, name: str, optimizer: Optimizer, optimized: _Held) -> Iterator[Slot]:
        """Yields the Slots of an optimizer's parameters that no known model has."""
        for index, group in enumerate(optimizer.param_groups):
            for number, parameter in enumerate(group["params"]):
                if id(parameter) not in self._names:
                    called = f"{name}.params.{index}.{number}"
                    yield from _of_parameter([called], parameter, optimized)


def _of_parameter(
    names: Sequence[str], parameter: torch.Tensor, optimized: _Held
) -> Iterator[Slot]:
    """Yields the Slots of a parameter, which has the first of its names."""
    name, kind = names[0], public_name(type(parameter))
    yield Slot(name, kind, "data", "data", _always(parameter))
    yield Slot(name, kind, "grad", "grad", functools.partial(getattr, parameter, "grad"))
    yield Slot(
        name, kind, "requires_grad", "plain", functools.partial(getattr, parameter, "requires_grad")
    )
    yield Slot(name, kind, "in_optimizer", "plain", _always(id(parameter) in optimized))
    text = setup_text(parameter.requires_grad, optimized.get(id(parameter), ()), names[1:])
    yield Slot(name, kind, SETUP, SETUP, _always(cut(text)))


def _always(thing: object) -> Callable[[], object]:
    """A function that returns `thing`.  No function written in Python is called as fast."""
    return itertools.repeat(thing).__next__


def _kind_of(thing: Any) -> tuple[str, bool]:
    """The name of an object's kind, and whether names of this kind end in an index from 0.

    With an index, the names are "scheduler.0", "scheduler.1"; else "optimizer", "optimizer2".
    """
    if isinstance(thing, Optimizer):
        return "optimizer", False
    if isinstance(thing, LRScheduler):
        return "scheduler", True
    if isinstance(thing, torch.amp.GradScaler):
        return "scaler", True
    return ("loader" if isinstance(thing, DataLoader) else "sampler"), True
