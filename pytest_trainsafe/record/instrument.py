"""One thing that a Run records or changes, beside the tensors of the watched model.

What one judge alone needs is an instrument in its wing.  The recorder makes a Run's instruments
(`instruments.py`) and calls their methods where a program reaches the moments that these describe.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from torch import nn

from pytest_trainsafe.annotations.declared import Annotations
from pytest_trainsafe.record.training.clipping import Clip

if TYPE_CHECKING:
    from pytest_trainsafe.record.hooks.changes import Changes
    from pytest_trainsafe.record.recorder import Recorder


@dataclass(frozen=True, slots=True)
class WatchedModel:
    """What a program passed to `ctx.watch`, or the engine that it passed holds.

    `parts` has the modules that this rank holds, each with its name in the model, `names` the name
    of each module in them, and `parameters` the parameters by name.
    """

    parts: Sequence[tuple[str, nn.Module]]
    names: Mapping[nn.Module, str]
    parameters: Mapping[str, nn.Parameter]
    optimizer: Any
    annotations: Annotations


class Instrument:
    """The base class of instruments, whose methods do nothing; a class defines those it needs.

    `after` names the instruments that must come first, each with the reason.  Methods are called in
    this order, and what ends or comes after a step in the opposite order.
    """

    name: ClassVar[str]
    after: ClassVar[Mapping[str, str]] = {}

    def __init__(self, recorder: Recorder) -> None:
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
