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

from pytest_trainsafe.core.layout import Flat, Layout, Sizes
from pytest_trainsafe.core.point import Point
from pytest_trainsafe.core.rank.state import keep_per_rank
from pytest_trainsafe.record.clock import ProgramError

if TYPE_CHECKING:
    from pytest_trainsafe.annotations.declared import Annotations
    from pytest_trainsafe.record.hooks.module_hooks import ModuleHooks
    from pytest_trainsafe.trace.writer import RankWriter

Parts = Sequence[tuple[str, nn.Module]]
Rename = Callable[[str], str]
#: Takes a parameter's name and returns the function to call with its gradients.
GradientHook = Callable[[str], Callable[[torch.Tensor], None]]


class Engine(Protocol):
    """A framework's object that runs backwards and optimizer steps for its program."""

    @property
    def module(self) -> Any:
        """The model that the engine trains, which is the model to record."""

    @property
    def optimizer(self) -> Any:
        """The engine's optimizer, which is recorded if the program passes none to `ctx.watch`."""

    def annotations(self, names: Mapping[nn.Module, str]) -> dict[str, Any]:
        """The annotations that follow from the engine's settings.

        `names` maps each module to its name.  The user's own annotations take precedence.
        """

    def reduces_in(self) -> str:
        """The dtype in which the engine reduces gradients over ranks; "" if none is configured."""

    def attach(self) -> None:
        """Installs the adapter's own hooks on the engine and its model.

        Called once, after the recorder has installed its hooks on the modules.
        """

    def listen(self, before: Callable[[bool], None], after: Callable[[], None]) -> None:
        """Makes the engine call `before(False)` and `after()` in every optimizer step.

        The call of `before` comes after the reduction of the gradients and before their clipping;
        `after` is called when the step has ended.  The argument of `before` says whether the step
        has a closure that computes the gradients, which a step of an engine never has.
        """

    def unscaled(self, grad: torch.Tensor) -> torch.Tensor:
        """Returns a gradient of the running backward with the loss scale removed."""

    def skipped(self) -> str:
        """Why the engine skipped its last step; "" if it did not skip the step."""


@dataclass(frozen=True, slots=True)
class Watched:
    """The model that a program passed to `ctx.watch`, with what an adapter needs to record it."""

    parts: Parts
    point: Point
    annotations: Annotations
    writer: RankWriter
    hooks: ModuleHooks


@dataclass(frozen=True, slots=True)
class RankTensor:
    """A tensor of this rank that belongs to a parameter.

    Without a `flat_range`, the tensor has the parameter's layout.  With a `flat_range`, it is a
    vector of the elements in that range of this rank's flattened shard.  If the range is empty,
    this rank has no element.

    Optimizers may also keep a single number, such as a step count, for all elements of a range.
    The tensor is then a vector of this one number, and `flat_range` has the shape ().
    """

    tensor: torch.Tensor
    flat_range: Flat | None = None


class ParameterAdapter(Protocol):
    """Finds the tensors of a parameter on this rank.

    A str in place of a tensor says why the tensor is unavailable; None means that there is none.
    """

    def shape(self, parameter: nn.Parameter) -> tuple[int, ...]:
        """The shape of this rank's part of the parameter, even while its memory is elsewhere."""

    def value(self, name: str, parameter: nn.Parameter) -> RankTensor:
        """The tensor that the model computes with."""

    def main_grad(self, name: str, parameter: nn.Parameter) -> RankTensor | None:
        """The gradient that the optimizer is about to use, after every reduction."""

    def master(self, name: str, parameter: nn.Parameter) -> RankTensor | str | None:
        """The copy that the optimizer updates, if it is not the parameter itself."""

    def states(self, name: str, parameter: nn.Parameter) -> Iterator[tuple[str, RankTensor | str]]:
        """Yields the names and tensors of the optimizer's state for the parameter."""


class Adapter:
    """The base class of adapters, whose methods answer the recorder's questions for plain PyTorch.

    A framework's adapter overrides the methods whose answers differ.  An adapter must not import
    its framework, because it is called for every program, including those that do not use the
    framework.
    """

    #: What the framework keeps for one rank in modules that all ranks of a process share: the name
    #: of a module and of its variables, or of the module alone for all of its variables.
    per_rank: tuple[tuple[str, ...], ...] = ()

    def engine(self, model: object) -> Engine | None:
        """The Engine of the model passed to `ctx.watch`; None if the framework has none for it."""
        return None

    def parameter_adapter(self, optimizer: Any, point: Point) -> ParameterAdapter | None:
        """The parameter adapter for an optimizer of the framework; None for any other optimizer."""
        return None

    def renaming(self, parts: Parts, point: Point, coordinates: Mapping[str, int]) -> Rename | None:
        """A function that maps names in this rank's parts to names in the whole model.

        None if the names are the same.  `coordinates` are those of this rank.
        """
        return None

    def local_modules(self, parts: Parts) -> tuple[str, ...]:
        """Prefixes of the names of modules whose outputs have no counterpart on a single device."""
        return ()

    def layout(self, name: str, parameter: Any, sizes: Sizes) -> Layout | None:
        """The layout of a parameter that the framework has split; None for any other.

        Raises LayoutError for a split that no Layout can express.
        """
        return None

    def rng_stream(self) -> str:
        """The name of the framework's stream of random numbers that is in use now.

        For frameworks that switch between several named streams, such as Megatron-LM's
        "model-parallel-rng"; "" if the default stream is in use or the framework has no named
        streams. Called whenever a random number is drawn.
        """
        return ""

    def find_wrappers(self, watched: Watched) -> None:
        """Finds the wrappers that average gradients over ranks, such as DistributedDataParallel.

        Stores the axes over which they average in `watched.annotations`.  Called by `ctx.watch` if
        the model has no Engine.
        """

    def listen_to_unsharded(
        self,
        modules: Iterable[nn.Module],
        parameters: Mapping[str, nn.Parameter],
        hook: GradientHook,
    ) -> None:
        """Installs hooks on the gradients of the unsharded copies of sharded parameters.

        FSDP2, for example, computes with such copies.  `hook(name)` returns the function to call
        with the gradients of the parameter `name`.
        """


#: The adapters of the Run that this process records.
_active: tuple[Adapter, ...] = ()
keep_per_rank(__name__, "_active")


def activate(paths: Iterable[str]) -> None:
    """Creates the adapters of this process from import paths ("package.module:Class")."""
    global _active
    _active = tuple(map(_made, paths))
    for adapter in _active:
        for module, *names in adapter.per_rank:
            keep_per_rank(module, *names)


def adapters() -> Iterator[Adapter]:
    """The adapters of this process; a project's own come before those of this package."""
    return reversed(_active)


def renaming(parts: Parts, point: Point, coordinates: Mapping[str, int]) -> Rename:
    """A function that maps names of modules and parameters on this rank to the whole model's."""
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
            f"the adapter {path!r} cannot be created ({error}); pytest_trainsafe_adapters must "
            'return import paths "package.module:Class" of classes that every rank can import and '
            "create without arguments"
        ) from error
    if not isinstance(made, Adapter):
        raise ProgramError(
            f"the adapter {path!r} is a {type(made).__name__}; derive its class from "
            "pytest_trainsafe.record.adapter.Adapter"
        )
    return made
