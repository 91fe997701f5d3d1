"""Finds the parameters that no optimizer holds, and the lines that change these or buffers.

Lines that change, outside of an optimizer's step, what an optimizer holds are found as well.

An average of the weights or a teacher is watched beside the model, and changes by the program's own
code, as does a buffer that no forward changes, such as the bias of a router.  Which parameters
these are is recorded after the program (`left.py`); the lines are recorded in the Runs of a
localisation only (`written.py`).
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import CodeType
from typing import Any

import msgspec
import torch

from pytest_trainsafe.compat.operators import schema_of
from pytest_trainsafe.core.code_files import calling_frames, calling_lines, line_of, owner_of
from pytest_trainsafe.record.clock import Clock
from pytest_trainsafe.record.tensors import memory
from pytest_trainsafe.record.training.optimizer import groups, names_of_held, stepping
from pytest_trainsafe.trace.facts import Changed
from pytest_trainsafe.trace.writer import RankWriter

#: Maximum number of lines of each kind that are recorded for one step: those that change what an
#: optimizer holds, other parameters, or buffers alone.
MAX_LINES = 8

#: The collectives that write no tensor of their first argument.  Torch declares none as mutable.
_READS = frozenset({"send", "barrier", "monitored_barrier_"})


def unheld(optimizer: Any, parameters: Mapping[str, torch.Tensor]) -> tuple[str, ...] | None:
    """The names of the parameters that no optimizer holds.

    None if that is not known: there is no optimizer, one has no groups of parameters, or one holds
    a tensor that is neither one of `parameters` nor the master copy of one.
    """
    names = names_of_held(parameters)
    held: set[str] = set()
    for inner in stepping(optimizer):
        own = [each for group in groups(inner) for each in group.get("params", ())]
        if not own or any(id(each) not in names for each in own):
            return None
        held.update(names[id(each)] for each in own)
    return tuple(name for name in parameters if name not in held) if held else None


class UnheldChanges:
    """Finds the lines of a step that change, in place, buffers and what no optimizer holds.

    Of what an optimizer holds, finds the lines that change it outside of the optimizer's step.
    `buffers` returns the paths of the present buffers, and the buffers.  `stepped` says whether an
    optimizer has stepped in the present step.
    """

    def __init__(
        self,
        clock: Clock,
        writer: RankWriter,
        optimizer: Any,
        parameters: Mapping[str, torch.Tensor],
        buffers: Callable[[], Iterable[tuple[str, torch.Tensor]]],
        stepped: Callable[[], bool],
    ) -> None:
        self._clock = clock
        self._writer = writer
        self._optimizer = optimizer
        self._parameters = parameters
        self._buffers = buffers
        self._stepped = stepped
        self._loop: tuple[int, CodeType] | None = None
        self._names: dict[int, tuple[str, ...]] = {}
        self._held: dict[int, tuple[str, ...]] = {}
        self._found: dict[str, dict[Changed, dict[str, None]]] = {}

    def begin(self) -> None:
        """A step begins: finds the function that enters it, and where the tensors lie."""
        frames = calling_frames(sys._getframe(1))
        loop = next((f for f, owner in frames if owner in ("project", "fixture")), None)
        self._loop = None if loop is None else (id(loop), loop.f_code)
        found = {*(unheld(self._optimizer, self._parameters) or ())}
        # An optimizer may step parameters in the same memory, a flat buffer, by any operation.
        shared = {memory(p) for name, p in self._parameters.items() if name not in found}
        self._names = {}
        own = ((name, each) for name, each in self._parameters.items() if name in found)
        for name, tensor in (*own, *self._buffers()):
            place = memory(tensor)
            if place and place not in shared:
                self._names[place] = (*self._names.get(place, ()), name)
        self._held = {}
        for name, tensor in self._parameters.items():
            if name not in found and (place := memory(tensor)):
                self._held[place] = (*self._held.get(place, ()), name)

    def look_at(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Notes the present line if `func`, which is about to run, changes such a tensor."""
        places = [memory(each) for each in _written(func, args)]
        if not places:
            return
        names = dict.fromkeys(name for each in places for name in self._names.get(each, ()))
        if names:
            alone = self._parameters.keys().isdisjoint(names)
            self._note(func, (*args, *kwargs.values()), names, "buffers" if alone else "parameters")
        held = dict.fromkeys(name for each in places for name in self._held.get(each, ()))
        if held and not self._clock.stepping:
            self._note(func, (*args, *kwargs.values()), held, "held")

    def _note(self, func: Any, given: Sequence[Any], names: dict[str, None], kind: str) -> None:
        """Keeps the present line, at most MAX_LINES of each kind; `given` are the arguments."""
        step = self._clock.step
        inner, user = calling_lines()
        at = user or inner
        if step is None or owner_of(at.rpartition(":")[0]) not in ("project", "installed"):
            return
        operation = schema_of(func).name.rpartition("::")[2]
        led = self._led_from()
        caller = "" if led == at else led
        numbers = _numbers(given) if func.namespace != "c10d" else ()
        key = Changed(step, at, operation, caller, self._stepped(), numbers)
        found = self._found.setdefault(kind, {})
        if key in found or len(found) < MAX_LINES:
            found.setdefault(key, {}).update(names)

    def end(self) -> None:
        """A step ends: writes the lines that were found."""
        for found in self._found.values():
            for key, names in found.items():
                self._writer.add(msgspec.structs.replace(key, parameters=(*names,)))
        self._found.clear()
        self._names = self._held = {}

    def _led_from(self) -> str:
        """The present line of the function that entered the step; "" if it is not on the stack."""
        for frame, _ in calling_frames(sys._getframe(1)):
            if self._loop == (id(frame), frame.f_code):
                return line_of(frame)
        return ""


def _written(func: Any, args: Sequence[Any]) -> Iterator[torch.Tensor]:
    """The tensors that an operation or a collective writes."""
    schema = schema_of(func)
    namespace, _, name = schema.name.partition("::")
    if namespace == "c10d":
        if args and name not in _READS:
            yield from tensors_of(args[0])
        return
    if not schema.is_mutable:
        return
    for argument, value in zip(schema.arguments, args, strict=False):
        if argument.alias_info is not None and argument.alias_info.is_write:
            yield from tensors_of(value)


def _numbers(values: Sequence[Any]) -> tuple[float, ...]:
    """The finite numbers among the arguments of an operation, at most 4."""
    found = (float(each) for each in values if type(each) in (int, float))
    return tuple(each for each in found if math.isfinite(each))[:4]


def tensors_of(value: Any) -> Iterator[torch.Tensor]:
    """A tensor, or the tensors of a list, also of a list of lists."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for each in value:
            yield from tensors_of(each)
