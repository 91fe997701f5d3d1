"""One thing that a Run records or changes, beside the tensors of the watched model.

What one judge alone needs is an instrument in its wing.  The recorder makes a Run's instruments
(`instruments.py`) and calls their methods where a program reaches the moments that these describe.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol, TypeVar

from torch import nn

from pytest_trainsafe.annotations.declared import Annotations
from pytest_trainsafe.record.adapter import Engine
from pytest_trainsafe.record.assignment import Assignment
from pytest_trainsafe.record.clock import Clock
from pytest_trainsafe.record.hooks.changes import Changes
from pytest_trainsafe.record.lines.origins import Origins
from pytest_trainsafe.record.model.parts import unwrapped
from pytest_trainsafe.record.model.unwatched import Beside
from pytest_trainsafe.record.program_dtype.draws import Draws
from pytest_trainsafe.record.training.clipping import Clip
from pytest_trainsafe.trace.run_spec import RunSpec
from pytest_trainsafe.trace.writer import RankWriter

_Kind = TypeVar("_Kind", bound="Instrument")


class Recording(Protocol):
    """What instruments need of the recorder; `draws` makes draws in the program's own dtype."""

    assignment: Assignment
    spec: RunSpec
    writer: RankWriter
    clock: Clock
    beside: Beside
    origins: Origins | None
    draws: Draws

    def instrument(self, kind: type[_Kind]) -> _Kind:
        """An instrument that was made before."""


@dataclass(frozen=True, slots=True)
class WatchedModel:
    """What a program passed to `ctx.watch`, or the engine that it passed holds.

    `parts` has the modules that this rank holds, each with its name in the model, `names` the name
    of each module in them, and `parameters` the parameters by name.  `engine` is None if the
    program passed no framework's engine.
    """

    parts: Sequence[tuple[str, nn.Module]]
    names: Mapping[nn.Module, str]
    parameters: Mapping[str, nn.Parameter]
    optimizer: Any
    annotations: Annotations
    engine: Engine | None = None

    @property
    def called(self) -> dict[nn.Module, str]:
        """The name of each module whose forward runs: of a wrapper, the module that it wraps."""
        return {unwrapped(module): name for module, name in self.names.items()}


class Instrument:
    """The base class of instruments, whose methods do nothing; a class defines those it needs.

    `after` names the instruments that must come first, each with the reason.  Methods are called in
    this order, and what ends or comes after a step in the opposite order.
    """

    name: ClassVar[str]
    after: ClassVar[Mapping[str, str]] = {}

    def __init__(self, recorder: Recording) -> None:
        """Called before the program starts; the instruments that come first are made."""

    def around(self) -> AbstractContextManager[object]:
        """Encloses the program."""
        return nullcontext()

    def before_watch(self, model: Any, optimizer: Any) -> None:
        """Called when the program enters `ctx.watch`, with its arguments."""

    def changes(self, watched: WatchedModel) -> Changes | None:
        """What this Run changes in the values that the model computes; None for nothing."""
        return None

    def watch(self, watched: WatchedModel) -> None:
        """Called when all hooks are installed and the initial values are recorded."""

    def before_step(self) -> None:
        """Called before a step begins; the clock has the number of steps that were taken."""

    def in_step(self, number: int) -> AbstractContextManager[object]:
        """Encloses what the program does in a step."""
        return nullcontext()

    def after_step(self) -> None:
        """Called after a step that no exception ended, when its tensors are recorded."""

    def in_microbatch(self, index: int) -> AbstractContextManager[object]:
        """Encloses what the program does in a micro-batch."""
        return nullcontext()

    def before_clip(self, clip: Clip) -> None:
        """Called before a function of torch clips gradients."""

    def meta(self, values: Mapping[str, object]) -> None:
        """Called with the values that the program passed to `ctx.meta`."""

    def saving(self) -> Iterator[Path | None]:
        """Implements `ctx.save`: yields the folder to save into, None for none."""
        yield None

    def loading(self) -> Iterator[Path | None]:
        """Implements `ctx.load`: yields the folder to load from, None for none."""
        yield None

    def finish(self) -> None:
        """Called after the program returned."""
