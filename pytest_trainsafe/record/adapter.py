"""What the recorder asks of a training framework, and the adapters that answer in this process.

A Run names its adapters by import path, so that the recorder knows no framework by name.  One that
the package does not have is added by the hook `pytest_trainsafe_adapters`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import nn

from pytest_trainsafe.core.layout import Layout, Sizes
from pytest_trainsafe.core.point import Point
from pytest_trainsafe.record.clock import ProgramError

if TYPE_CHECKING:
    from pytest_trainsafe.annotations.declared import Annotations
    from pytest_trainsafe.record.hooks.compiled import ModuleHooks
    from pytest_trainsafe.record.training.holdings import Holdings
    from pytest_trainsafe.trace.writer import RankWriter

Parts = Sequence[tuple[str, nn.Module]]
Rename = Callable[[str], str]
#: What is called with the gradients of the parameter of a name.
GradientHook = Callable[[str], Callable[[torch.Tensor], None]]


class Engine(Protocol):
    """A framework's object that runs backwards and optimizer steps for its program."""

    @property
    def module(self) -> Any:
        """The model that it trains, which is recorded."""

    @property
    def optimizer(self) -> Any:
        """Its optimizer, watched where the program names none."""

    def annotations(self, names: Mapping[nn.Module, str]) -> dict[str, Any]:
        """What a user would annotate because of it; the user's own annotations win."""

    def reduces_in(self) -> str:
        """The dtype in which it reduces gradients over ranks; "" where it does not say."""

    def attach(self) -> None:
        """Called once, when the recorder's hooks are on the modules."""

    def listen(self, before: Callable[[bool], None], after: Callable[[], None]) -> None:
        """Call `before(False)` when gradients are reduced and not yet clipped, `after()` later."""

    def unscaled(self, grad: torch.Tensor) -> torch.Tensor:
        """A gradient of the backward that runs, without a loss scale."""

    def skipped(self) -> str:
        """Why it left out its last step; "" where it did not."""


@dataclass(frozen=True, slots=True)
class Watched:
    """A model that a program watches: its parts, and where what is found is written down."""

    parts: Parts
    point: Point
    annotations: Annotations
    writer: RankWriter
    hooks: ModuleHooks


class Adapter:
    """Answers for plain PyTorch.  A framework's adapter overrides what differs under it.

    An adapter must not import its framework: it is asked of every program, also of those that
    do not use it.
    """

    def engine(self, model: object) -> Engine | None:
        """The engine that `ctx.watch` was given as its model; None where it is not of this kind."""
        return None

    def holdings(self, optimizer: Any, point: Point) -> Holdings | None:
        """Where an optimizer of the framework keeps gradients, master copies and states."""
        return None

    def renaming(self, parts: Parts, point: Point, coordinates: Mapping[str, int]) -> Rename | None:
        """From a rank's names to the whole model's, where ranks number what they hold from 0."""
        return None

    def local_modules(self, parts: Parts) -> tuple[str, ...]:
        """How the names of modules begin whose outputs have no counterpart on a single device."""
        return ()

    def layout(self, name: str, parameter: Any, sizes: Sizes) -> Layout | None:
        """The layout of a parameter that the framework has cut; None for any other.

        Raises LayoutError for a cut that cannot be expressed.
        """
        return None

    def rng_stream(self) -> str:
        """The name under which the framework keeps the random state that is in use now.

        For trackers of several streams, as Megatron-LM has one ("model-parallel-rng"); "" where
        the default stream is in use, or there is no tracker.  Asked at every draw.
        """
        return ""

    def find_wrappers(self, watched: Watched) -> None:
        """Find what averages gradients over ranks, where the model has no engine."""

    def listen_to_unsharded(
        self,
        modules: Iterable[nn.Module],
        parameters: Mapping[str, nn.Parameter],
        hook: GradientHook,
    ) -> None:
        """Hook the gradients of tensors that stand in for sharded parameters in a backward."""


#: The adapters of the Run that this process records.
_active: tuple[Adapter, ...] = ()


def activate(paths: Iterable[str]) -> None:
    """Make the adapters that import paths name ("package.module:Class") those of this process."""
    global _active
    _active = tuple(map(_made, paths))


def adapters() -> Iterator[Adapter]:
    """The adapters of this process, a project's own before those of the package."""
    return reversed(_active)


def renaming(parts: Parts, point: Point, coordinates: Mapping[str, int]) -> Rename:
    """From a rank's names of modules and parameters to the whole model's."""
    found = [adapter.renaming(parts, point, coordinates) for adapter in adapters()]
    chosen = [rename for rename in found if rename is not None]

    def rename(name: str) -> str:
        for each in chosen:
            name = each(name)
        return name

    return rename


def _made(path: str) -> Adapter:
    module, _, name = path.partition(":")
    try:
        made = getattr(import_module(module), name)()
    except (ImportError, AttributeError, TypeError) as error:
        raise ProgramError(
            f"the adapter {path!r} cannot be made ({error}); pytest_trainsafe_adapters takes "
            '"package.module:Class", a class without arguments that ranks can import'
        ) from error
    if not isinstance(made, Adapter):
        raise ProgramError(
            f"the adapter {path!r} is a {type(made).__name__}; derive its class from "
            "pytest_trainsafe.record.adapter.Adapter"
        )
    return made
