"""The interface of metamorphic relations.  Programs declare them; `assert_same_by` judges them.

A relation compares a Run with a changed Run that must, by definition, train in the same way.
Neither Run is assumed to be correct, so a fault that all Runs of the program share can be found.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from pytest_trainsafe.core.point import Point
from pytest_trainsafe.core.usage import listing, nearest, shown
from pytest_trainsafe.errors import ArgumentError, RelationError

if TYPE_CHECKING:
    import torch

    from pytest_trainsafe.core.finding import Pattern
    from pytest_trainsafe.core.tensor_id import TensorId
    from pytest_trainsafe.trace.schema import TensorEvent

#: A function that makes a tensor from its parts, which are float64 (or integers) on the CPU.
Combine = Callable[[Sequence["torch.Tensor"]], "torch.Tensor"]

#: The tensor is compared as it was recorded.
KEEP = "keep"

#: A function that returns why a relation does not hold for the Run of a Setting, or None.
Unless = Callable[["Setting"], str | None]


@dataclass(frozen=True, slots=True)
class Setting:
    """The Run that a relation changes: its program, Point and arguments, including defaults.

    `microbatches` is the number of micro-batches that a step of the Run has, over all dp ranks.
    """

    program: str
    point: Point
    arguments: Mapping[str, object]
    microbatches: int

    def value(self, name: str) -> object:
        """The value of the axis or argument `name`.  Raises ArgumentError if there is none."""
        axes = dict(self.point)
        if name in axes:
            return axes[name]
        if name not in self.arguments:
            known = [*axes, *self.arguments]
            raise ArgumentError(
                f"{self.program} has no argument or axis {shown(name)}, which the relation uses; "
                f"it has {listing(known) or 'none'}{nearest(name, known)}"
            )
        return self.arguments[name]

    def number(self, name: str, least: int = 1) -> int:
        """The value of the axis or argument `name`, an int of at least `least`.

        Raises RelationError if it is anything else.
        """
        found = self.value(name)
        if type(found) is not int or found < least:
            raise RelationError(
                f"{self.program} has {name}={shown(found)}, but the relation needs {name} to be an "
                f"integer of at least {least}"
            )
        return found


@dataclass(frozen=True, slots=True)
class Change:
    """The change of a Run: new values of axes and arguments, and an order of micro-batches.

    `values` maps names of axes and arguments to their new values.  If `order` is not empty,
    `ctx.microbatches` yields the number order[n] in place of n.
    """

    values: Mapping[str, object] = field(default_factory=dict)
    order: tuple[int, ...] = ()

    def __str__(self) -> str:
        words = [f"{name}={value}" for name, value in self.values.items()]
        if self.order:
            words.append(f"micro-batches in the order {', '.join(map(str, self.order))}")
        return " ".join(words)


class View(ABC):
    """How the recorded tensors of one Run are turned into tensors that the other Run records."""

    def place(self, id: TensorId) -> TensorId | None:
        """The id of the tensor of the other Run to which the recorded tensor `id` contributes.

        None if the recorded tensor is left out.
        """
        return id

    @abstractmethod
    def combine(
        self, id: TensorId, parts: Sequence[TensorEvent], like: tuple[int, ...] | None
    ) -> Combine | str | None:
        """Return how the tensor `id` of the other Run is made from its recorded parts.

        The parts are the recorded tensors for which `place` returns `id`.  The result is a function
        that is called with the parts' tensors, KEEP if there is a single part that stays as it is,
        or None if the tensor has no counterpart and is left out.  `parts` are the events of the
        parts, with their shapes and hashes, in the order of their micro-batches.  `like` is the
        tensor's shape in the other Run, or None if the other Run did not record it.
        """


@dataclass(frozen=True)
class Relation(ABC):
    """A metamorphic relation.  A subclass defines the change, and how the two Runs' tensors match.

    `unless` takes a Setting (the program, Point and arguments of the unchanged Run) and returns why
    the relation does not hold for this Run, or None if it holds.  `ignore` has `fnmatch` patterns
    of the modules and parameters whose tensors are not compared.  With `exact`, the two Runs must
    have equal bits; by default they may differ by the rounding measured on the unchanged Run.
    """

    #: The name by which tests refer to the relation.
    name: ClassVar[str]
    #: What is done to the Run, for the report: "the same samples in another order".
    what: ClassVar[str]
    #: What a difference usually means, for the report.
    suspects: ClassVar[str]
    #: Whether the recorded tensors must differ if the program follows the change.  Equal tensors
    #: then mean that the program ignored it, so that the Run was compared with itself.
    visible: ClassVar[bool] = True
    #: The fields that hold names of arguments or axes, without which the relation cannot act.
    acts_through: ClassVar[tuple[str, ...]] = ()

    unless: Unless | None = field(default=None, kw_only=True)
    ignore: tuple[str, ...] = field(default=(), kw_only=True)
    exact: bool = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        patterns: object = self.ignore
        if isinstance(patterns, str) or not all(isinstance(each, str) for each in self.ignore):
            raise ArgumentError(
                f"{type(self).__name__} was given {shown(patterns)} as ignore; ignore must be a "
                'tuple of patterns of modules and parameters, such as ("*.router",)'
            )

    @abstractmethod
    def change(self, setting: Setting) -> Change:
        """The change that turns the unchanged Run, which `setting` describes, into the changed Run.

        Raises RelationError if the relation does not apply at the Point, and ArgumentError if the
        relation itself is wrong.
        """

    def views(self, setting: Setting) -> tuple[View | None, View | None]:
        """The views of the unchanged and of the changed Run; None if a Run needs no view.

        After the views, the tensors of both Runs must correspond in names, micro-batches and
        shapes.
        """
        return None, None

    def explain(self, pattern: Pattern) -> Pattern:
        """Returns the Pattern that the report shows in place of `pattern`.

        A Pattern says how a wrong value relates to the right one, and what probably causes this.
        The default returns `pattern` itself.  Override this method if a text about a candidate and
        its reference does not fit the relation's two Runs.
        """
        return pattern
