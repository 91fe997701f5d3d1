"""The recorder's interface to training frameworks, and the adapters active in this process.

A Run names its adapters by import path, so the recorder knows no framework by name.  Projects add
adapters of their own with the hook `pytest_trainsafe_adapters`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import nn

from pytest_trainsafe.core.layout import Layout, Sizes
from pytest_trainsafe.core.point import Point
from pytest_trainsafe.record.clock import ProgramError

if TYPE_CHECKING:
    from pytest_trainsafe.annotations.declared import Annotations
    from pytest_trainsafe.record.hooks.compiled import ModuleHooks
    from pytest_trainsafe.record.training.parameter_adapter import ParameterAdapter
    from pytest_trainsafe.trace.writer import RankWriter

Parts = Sequence[tuple[str, nn.Module]]
Rename = Callable[[str], str]
#: Takes a parameter's name and returns the function to call with its gradients.
GradientHook = Callable[[str], Callable[[torch.Tensor], None]]


class Engine(Protocol):
    """A framework's object that runs backwards and optimizer steps for its program."""

    @property
    def module(self) -> Any:
        """The model that it trains; this is the model that is recorded."""

    @property
    def optimizer(self) -> Any:
        """Its optimizer, watched if the program passes none."""

    def annotations(self, names: Mapping[nn.Module, str]) -> dict[str, Any]:
        """The annotations that the engine implies; the user's own take precedence."""

    def reduces_in(self) -> str:
        """The dtype in which it reduces gradients over ranks; "" if it is not configured."""

    def attach(self) -> None:
        """Called once, after the recorder's hooks are on the modules."""

    def listen(self, before: Callable[[bool], None], after: Callable[[], None]) -> None:
        """Calls `before(False)` between reduction and clipping, `after()` after the step."""

    def unscaled(self, grad: torch.Tensor) -> torch.Tensor:
        """A gradient of the running backward without the loss scale."""

    def skipped(self) -> str:
        """Why it skipped its last step; "" if it did not."""


@dataclass(frozen=True, slots=True)
class Watched:
    """A model that a program watches: its parts, and the recorder's objects to work with."""

    parts: Parts
    point: Point
    annotations: Annotations
    writer: RankWriter
    hooks: ModuleHooks


class Adapter:
    """The answers for plain PyTorch.  A framework's adapter overrides those that differ.

    An adapter must not import its framework, because it is called for every program, including
    those that do not use the framework.
    """

    def engine(self, model: object) -> Engine | None:
        """The engine, if the model passed to `ctx.watch` is this framework's; else None."""
        return None

    def parameter_adapter(self, optimizer: Any, point: Point) -> ParameterAdapter | None:
        """The parameter adapter for an optimizer of the framework; None for any other optimizer."""
        return None

    def renaming(self, parts: Parts, point: Point, coordinates: Mapping[str, int]) -> Rename | None:
        """A function from a rank's names to the whole model's; None if names agree."""
        return None

    def local_modules(self, parts: Parts) -> tuple[str, ...]:
        """Prefixes of names of modules whose outputs have no counterpart on a single device."""
        return ()

    def layout(self, name: str, parameter: Any, sizes: Sizes) -> Layout | None:
        """The layout of a parameter that the framework has split; None for any other.

        Raises LayoutError for a split that cannot be expressed.
        """
        return None

    def rng_stream(self) -> str:
        """The name under which the framework stores the random state that is in use.

        For trackers of several streams, such as Megatron-LM's ("model-parallel-rng"); "" if
        the default stream is in use, or there is no tracker. Called at every draw.
        """
        return ""

    def find_wrappers(self, watched: Watched) -> None:
        """Finds the wrappers that average gradients over ranks, if the model has no engine."""

    def listen_to_unsharded(
        self,
        modules: Iterable[nn.Module],
        parameters: Mapping[str, nn.Parameter],
        hook: GradientHook,
    ) -> None:
        """Hooks the gradients of tensors that replace sharded parameters in a backward."""


#: The adapters of the Run that this process records.
_active: tuple[Adapter, ...] = ()


def activate(paths: Iterable[str]) -> None:
    """Sets the adapters of this process, from import paths ("package.module:Class")."""
    global _active
    _active = tuple(map(_made, paths))


def adapters() -> Iterator[Adapter]:
    """The adapters of this process, a project's own before those of this package."""
    return reversed(_active)


def renaming(parts: Parts, point: Point, coordinates: Mapping[str, int]) -> Rename:
    """A function from a rank's names of modules and parameters to the whole model's."""
    found = [adapter.renaming(parts, point, coordinates) for adapter in adapters()]
    chosen = [rename for rename in found if rename is not None]

    def rename(name: str) -> str:
        for each in chosen:
            name = each(name)
        return name

    return rename


def _made(path: str) -> Adapter:
    try:
        made = resolve_name(path)()
    except (ImportError, AttributeError, TypeError) as error:
        raise ProgramError(
            f"the adapter {path!r} cannot be created ({error}); pytest_trainsafe_adapters takes "
            '"package.module:Class", a class without arguments that ranks can import'
        ) from error
    if not isinstance(made, Adapter):
        raise ProgramError(
            f"the adapter {path!r} is a {type(made).__name__}; derive its class from "
            "pytest_trainsafe.record.adapter.Adapter"
        )
    return made
