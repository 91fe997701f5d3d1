"""Records the settings with which an optimizer would take a next step.  Called after the program.

Momentum, dampening and a schedule act in later steps only: a test of one step cannot see in
tensors that they differ.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from pytest_trainsafe.record.training.optimizer import groups, stepping
from pytest_trainsafe.trace.facts import Settings

#: Switches that change what is computed.  Others say how, or what a framework does with a group.
_SWITCHES = frozenset(
    {"amsgrad", "centered", "decoupled_weight_decay", "maximize", "nesterov", "rectify"}
)


def settings(optimizer: Any, parameters: Mapping[str, torch.Tensor]) -> Iterator[Settings]:
    """Yields the numbers and switches of each group of parameters that has any on this rank.

    `parameters` are those of the model, by name; a parameter of a group is one of them or the
    master copy of one.  The group of any other parameter has no names.
    """
    names = {id(holder): name for name, p in parameters.items() for holder in _holders(p)}
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


def _holders(parameter: torch.Tensor) -> list[Any]:
    return [parameter, getattr(parameter, "main_param", None)]


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
