"""The patched calls that have not returned, and which of them count as calls of the program."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from torch import nn

from pytest_trainsafe.judges.learn.events.events import Call
from pytest_trainsafe.judges.learn.instrument.patching.catalogue import Target
from pytest_trainsafe.judges.learn.instrument.slips.moments import Moment


class Frame:
    """A patched call that has not returned.  `call` is None if the call is not recorded.

    `thing` is the object whose method was called, or None.  `moment` is what watchers of slips see.
    """

    __slots__ = ("api", "call", "method", "moment", "phase", "thing", "training")

    def __init__(self, api: str, method: str, thing: object) -> None:
        self.api, self.method, self.thing = api, method, thing
        self.call: Call | None = None
        self.moment: Moment | None = None
        self.phase = ""
        self.training: bool | None = None


class Thread(threading.local):
    """The patched calls of one thread that have not returned.

    `busy` is True while this package's own code runs, whose calls are not observed.
    """

    def __init__(self) -> None:
        self.frames: list[Frame] = []
        self.busy = False
        self.number: int | None = None

    def innermost(self) -> Call | None:
        """The innermost recorded call; None if there is none."""
        return next((each.call for each in reversed(self.frames) if each.call is not None), None)


def outside_of_modules(frames: Sequence[Frame]) -> bool:
    return not any(isinstance(frame.thing, nn.Module) for frame in frames)


def repeats(outer: Frame, api: str, thing: object, target: Target) -> bool:
    """Whether a call is a part of the call around it, `outer`, and so is not recorded.

    This is so for a method that calls the same method through `super()` or on a submodule.  `api`
    is the name of the inner call's API, and `thing` its object.
    """
    if target.role.kind == "module":
        return False
    if isinstance(thing, nn.Module):
        return outer.method == target.method and isinstance(outer.thing, nn.Module)
    return outer.api == api and outer.thing is thing
