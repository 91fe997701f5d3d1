"""Collects the meta variables of a call: the step, the phase, the rank and the autocast dtype.

A meta variable is a named fact that holds at a call or a change of state; the program may add more.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from pytest_trainsafe.errors import ArgumentError, ArgumentTypeError
from pytest_trainsafe.judges.learn.events.events import ACTIVE, Plain
from pytest_trainsafe.judges.learn.instrument.describe import as_plain
from pytest_trainsafe.judges.learn.instrument.facts import dtype_name
from pytest_trainsafe.judges.learn.instrument.patching.contexts import Contexts

#: Meta variables that a program may set under their own names; others become "user.NAME".
TIME = ("step", "epoch", "microbatch")

#: The most sets of meta variables that are cached.
_MAX_KNOWN = 4096


class Meta:
    """Provides the meta variables that are recorded with each call and each change.

    They say where in the training it happens: in which step, phase and autocast region, for
    example.  Calls and changes with equal meta variables share one mapping, which is cached.
    `fixed` has those that never change: the rank, the world size and the coordinates.
    """

    def __init__(self, fixed: Mapping[str, Plain]) -> None:
        self._fixed = dict(fixed)
        self.step: int | None = 0
        self.epoch: int | None = None
        self.microbatch: int | None = None
        self._user: dict[str, Plain] = {}
        self._changes = 0
        self._known: dict[tuple[object, ...], Mapping[str, Plain]] = {}
        self.contexts = Contexts()
        self._devices = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]

    def set_user(self, name: str, value: Plain) -> None:
        """Set a meta variable of the program's own, which is recorded as "user.NAME"."""
        self._user[f"user.{name}"] = value
        self._changes += 1

    def now(self, phase: str, training: bool | None) -> Mapping[str, Plain]:
        """The current meta variables, by name, such as {"step": 3, "phase": "forward"}.

        `phase` is the current phase, and `training` the innermost module's mode, or None.
        """
        autocast = None
        for device in self._devices:
            if torch.is_autocast_enabled(device):
                autocast = torch.get_autocast_dtype(device)
        gradients, inference = torch.is_grad_enabled(), torch.is_inference_mode_enabled()
        key = (
            *(self.step, self.microbatch, self.epoch, phase, training),
            *(autocast, gradients, inference, self._changes),
            *(self.contexts.names, self.contexts.join),
        )
        known = self._known.get(key)
        if known is None:
            if len(self._known) >= _MAX_KNOWN:
                self._known.clear()
            known = self._known[key] = {
                **self._fixed,
                "step": self.step,
                "microbatch": self.microbatch,
                "epoch": self.epoch,
                "phase": phase,
                "training": training,
                "autocast": None if autocast is None else dtype_name(autocast),
                "no_grad": not gradients,
                "inference": inference,
                **({} if self.contexts.join is None else {"join": self.contexts.join}),
                **{f"{ACTIVE}{name}": True for name in self.contexts.names},
                **self._user,
            }
        return known


def checked(values: Mapping[str, object]) -> dict[str, Plain]:
    """The values that a program passed to `meta(...)`, by name, as plain numbers, bools or texts.

    Raises ArgumentError or ArgumentTypeError for a value that is not allowed.
    """
    found: dict[str, Plain] = {}
    for name, value in values.items():
        plain = as_plain(value)
        if value is not None and plain is None:
            raise ArgumentTypeError(
                f"meta({name}=...) is a {type(value).__name__}, but a meta variable must be a "
                "number, a bool, a str or None. Pass tensor.item() for a tensor of one element"
            )
        if name in TIME and not (plain is None or type(plain) is int):
            raise ArgumentTypeError(f"meta({name}={value!r}): {name} must be an int or None")
        if name == "step" and (plain is None or int(plain) < 0):
            raise ArgumentError(f"meta(step={value!r}): step must be an int of 0 or more")
        found[name] = plain
    return found
