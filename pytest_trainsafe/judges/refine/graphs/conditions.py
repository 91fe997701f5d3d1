"""Conditions on tensors in a program that is captured, such as `if norm > clip`.

A graph has one of both cases.  The user says which, and the graph states it: where it is evaluated,
the condition must have this outcome.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from pytest_trainsafe.compat.tensors import is_fake_class
from pytest_trainsafe.errors import ArgumentError

#: What the assertion that states a condition says, by the outcome.
STATED = {True: "trainsafe: the condition holds", False: "trainsafe: the condition does not hold"}


class Conditions(TorchFunctionMode):
    """While it is active, conditions on tensors without values have the given outcomes, in order.

    Conditions after these are an error of torch.
    """

    def __init__(self, outcomes: Sequence[bool]) -> None:
        super().__init__()
        self.outcomes = list(outcomes)
        self.asked = 0

    def __torch_function__(
        self,
        function: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        unknown = function is torch.Tensor.__bool__ and is_fake_class(type(args[0]))
        if not unknown or self.asked == len(self.outcomes):
            return function(*args, **(kwargs or {}))
        outcome = self.outcomes[self.asked]
        self.asked += 1
        torch.ops.aten._assert_async.msg(args[0].bool(), STATED[outcome])
        return outcome

    def check(self) -> None:
        """Raises ArgumentError if the program asked for fewer conditions than were given."""
        if self.asked < len(self.outcomes):
            raise ArgumentError(
                f"capture was given {len(self.outcomes)} conditions, but the program asked for "
                f"{self.asked}"
            )
