"""Records what a program leaves to steps that the test does not train.  Called by the recorder.

Gradients that nobody clears, settings of the optimizer, weights that change after the last step,
and numbers that modules and optimizers count: a bug in them shows in later steps only.  Also the
settings with which the optimizer steps, and the marks that the program set on parameters.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
import torch
from torch import nn

from pytest_trainsafe.core.usage import first_few
from pytest_trainsafe.record.clock import Clock
from pytest_trainsafe.record.tensors import local_values
from pytest_trainsafe.record.training.optimizer import groups, names_of_held, stepping
from pytest_trainsafe.record.training.unheld import unheld
from pytest_trainsafe.trace.facts import Counted, Marked, Settings, Unheld
from pytest_trainsafe.trace.run_spec import RunSpec
from pytest_trainsafe.trace.schema import NoteEvent
from pytest_trainsafe.trace.writer import RankWriter

#: How many owners of numbers a rank records.
MAX_OWNERS = 256

#: How many marks of parameters a rank records.
MAX_MARKS = 64

#: Switches that change what is computed.  Others say how, or what a framework does with a group.
_SWITCHES = frozenset(
    {"amsgrad", "centered", "decoupled_weight_decay", "maximize", "nesterov", "rectify"}
)


class Left:
    """What one rank's program leaves behind."""

    def __init__(self, spec: RunSpec, clock: Clock, writer: RankWriter) -> None:
        self._clock = clock
        self._settled: set[int] = set()
        # Runs that only measure need no notes.
        self._measures = bool(spec.perturbation)
        self._notes = not (self._measures or spec.rewrite or spec.record == "sketch")
        self._writer = writer
        self._parameters: Mapping[str, torch.Tensor] = {}
        self._optimizer: Any = None
        self._owners: dict[str, object] = {}
        self._counted: dict[str, dict[str, str]] = {}

    def watch(
        self,
        modules: Mapping[nn.Module, str],
        parameters: Mapping[str, torch.Tensor],
        optimizer: Any,
    ) -> None:
        """Remembers the modules, parameters and optimizer, and the numbers that they have now."""
        self._parameters, self._optimizer = parameters, optimizer
        if not self._notes:
            return
        named = [(f"module {name}" if name else "model", each) for each, name in modules.items()]
        named += [(f"optimizer {type(one).__name__}", one) for one in stepping(optimizer)]
        self._owners = dict(named[:MAX_OWNERS])
        self._counted = {name: _numbers(owner) for name, owner in self._owners.items()}
        for one in stepping(optimizer):
            # A subclass may not call Optimizer.__init__, and then has no hooks.
            with contextlib.suppress(AttributeError):
                one.register_step_pre_hook(self._before_step)

    def _before_step(self, *_: object) -> None:
        """Writes the settings with which the optimizers step, once for each step."""
        step = self._clock.step
        if step is not None and step not in self._settled:
            self._settled.add(step)
            for each in settings(self._optimizer, self._parameters):
                self._writer.add(msgspec.structs.replace(each, step=step))

    def finish(self, changed: Callable[[], Sequence[str]]) -> None:
        """After the program, writes what it leaves.

        `changed` finds the weights that changed after the last step, and is called if that counts.
        """
        held = None if self._measures else unheld(self._optimizer, self._parameters)
        if held is not None:
            self._writer.add(Unheld(held))
        for mark in () if self._measures else marks(self._parameters):
            self._writer.add(mark)
        if not self._notes:
            return
        if left_gradients(self._parameters.values()):
            self._writer.add(NoteEvent("left", "gradients"))
        for each in settings(self._optimizer, self._parameters):
            self._writer.add(each)
        for name, owner in self._owners.items():
            before = self._counted[name]
            own = {k: v for k, v in _numbers(owner).items() if before.get(k) != v}
            if own:
                self._writer.add(Counted(name, own))
        for text in (*_others(self._optimizer, self._parameters), *_after_last(changed())):
            self._writer.add(NoteEvent("not_compared", text))


def left_gradients(parameters: Iterable[torch.Tensor]) -> bool:
    """Whether a parameter still has a gradient that is not zero."""
    grads = (each.grad for each in parameters if each.grad is not None and each.grad.numel())
    return any(bool(local_values(grad.detach()).any()) for grad in grads)


def marks(parameters: Mapping[str, torch.Tensor]) -> list[Marked]:
    """The switches that the program set on parameters, each with the parameters that have it."""
    found: dict[tuple[str, bool], list[str]] = {}
    for path, parameter in parameters.items():
        for name, value in getattr(parameter, "__dict__", {}).items():
            if isinstance(value, bool) and not name.startswith("_"):
                found.setdefault((name, value), []).append(path)
    listed = sorted(found.items())[:MAX_MARKS]
    return [Marked(name, value, tuple(paths)) for (name, value), paths in listed]


def settings(optimizer: Any, parameters: Mapping[str, torch.Tensor]) -> Iterator[Settings]:
    """Yields the numbers and switches of each group of parameters that has any on this rank.

    `parameters` are those of the model, by name; a parameter of a group is one of them or the
    master copy of one.  The group of any other parameter has no names.
    """
    names = names_of_held(parameters)
    for inner in stepping(optimizer):
        for group in groups(inner):
            held = [each for each in group.get("params", ()) if _numel(each)]
            values = {
                key: text
                for key, value in group.items()
                if isinstance(key, str) and key != "params" and (text := _text(key, value))
            }
            known = tuple(names[id(each)] for each in held if id(each) in names)
            if held and values:
                yield Settings(values, known if len(known) == len(held) else ())


def _numel(parameter: Any) -> int:
    return parameter.numel() if isinstance(parameter, torch.Tensor) else 0


def _text(key: str, value: Any) -> str:
    """The value of a setting; "" for what is no number, and for a switch of an unknown meaning."""
    if isinstance(value, torch.Tensor) and value.numel() == 1 and not value.is_meta:
        value = value.item()
    if isinstance(value, bool):
        return str(value) if key in _SWITCHES else ""
    if isinstance(value, int | float):
        return repr(float(value))
    if isinstance(value, list | tuple) and 0 < len(value) <= 8:
        numbers = [_text("", each) for each in value]
        return " ".join(numbers) if all(numbers) else ""
    return ""


def _numbers(owner: object) -> dict[str, str]:
    """The attributes of an object that are numbers, as `repr(float)`."""
    return {
        key: repr(float(value))
        for key, value in getattr(owner, "__dict__", {}).items()
        if not key.startswith("_")
        and type(value) in (int, float)
        and math.isfinite(value)
        and abs(value) < 2**63
    }


def _others(optimizer: Any, parameters: Mapping[str, torch.Tensor]) -> Iterator[str]:
    """A sentence on tensors that an optimizer updates beside parameters of the watched model.

    An optimizer of which no tensor is a parameter of the model holds copies of them.
    """
    known = names_of_held(parameters)
    for inner in stepping(optimizer):
        held = [each for group in groups(inner) for each in group.get("params", ())]
        others = [each for each in held if id(each) not in known]
        if others and len(others) < len(held):
            shapes = first_few([str(tuple(each.shape)) for each in others])
            yield (
                f"tensors that {type(inner).__name__} updates and that are no parameters of the "
                f"watched model (of shape {shapes}); register them in a module that ctx.watch gets"
            )


def _after_last(changed: Sequence[str]) -> Iterator[str]:
    if changed:
        yield (
            f"what changes the weights after the last step ({first_few(changed)}); change them "
            "inside ctx.step"
        )
