"""What a program tells of itself beside its signature.  Read by the sweep and the session.

Programs that are made for a framework have traits; a user's own function needs none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from pytest_trainsafe.core.axes import DTYPES

if TYPE_CHECKING:
    from pytest_trainsafe.sweep.case import Case

_Function = TypeVar("_Function", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Traits:
    """`candidate` holds arguments that only a candidate is given, unless the test says otherwise.

    `how` names the parameters that say how to train, not what: as axes, only a candidate follows
    them.  `dtypes` are the rungs in which a candidate can be judged; the reference runs in all.
    `inputs` are files that the program reads, part of the key of its references.  `unavailable`
    is asked before a candidate runs why this machine cannot run it; "" if it can.
    """

    candidate: Mapping[str, object] = field(default_factory=dict)
    how: frozenset[str] = frozenset()
    dtypes: tuple[str, ...] = DTYPES
    inputs: tuple[str, ...] = ()
    unavailable: Callable[[Case], str] | None = None


def give_traits(function: _Function, traits: Traits) -> _Function:
    """Attach traits to a program."""
    function.trainsafe_traits = traits  # type: ignore[attr-defined]
    return function


def traits_of(function: Callable[..., Any]) -> Traits:
    """A program's traits; plain ones where it has none."""
    found: Traits = getattr(function, "trainsafe_traits", None) or Traits()
    return found
