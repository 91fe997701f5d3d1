"""What a program tells of itself beside its signature.  Read by the sweep and the session.

Programs that are made for a framework have traits, and those with mesh axes of their own; any
other function needs none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar

from pytest_trainsafe.core.axes import DTYPES
from pytest_trainsafe.core.mesh import DEFAULT, Mesh
from pytest_trainsafe.core.usage import shown
from pytest_trainsafe.errors import SweepError

if TYPE_CHECKING:
    from pytest_trainsafe.sweep.case import Case

_Function = TypeVar("_Function", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Traits:
    """`candidate` holds arguments that only a candidate is given, unless the test says otherwise.

    `how` names the parameters that say how to train, not what: as axes, only a candidate follows
    them.  `dtypes` are the rungs in which a candidate can be judged; the reference runs in all.
    `inputs` are files that the program reads, part of the key of its references.  `unavailable`
    is asked before a candidate runs why this machine cannot run it; "" if it can.  `mesh` has the
    axes that multiply into the world size, in the order of ranks.
    """

    candidate: Mapping[str, object] = field(default_factory=dict)
    how: frozenset[str] = frozenset()
    dtypes: tuple[str, ...] = DTYPES
    inputs: tuple[str, ...] = ()
    unavailable: Callable[[Case], str] | None = None
    mesh: Mesh = DEFAULT


def give_traits(function: _Function, traits: Traits) -> _Function:
    """Attach traits to a program."""
    function.trainsafe_traits = traits  # type: ignore[attr-defined]
    return function


def on_mesh(mesh: Mesh) -> Callable[[_Function], _Function]:
    """Give a program mesh axes of its own: `@on_mesh(Mesh("pp", "dp", "tp"))`.

    The axes are then axes of its sweeps; see `Mesh`.
    """
    if not isinstance(mesh, Mesh):
        raise SweepError(f"on_mesh takes a Mesh('pp', 'dp', 'tp'), not {shown(mesh)}")

    def decorate(function: _Function) -> _Function:
        return give_traits(function, replace(traits_of(function), mesh=mesh))

    return decorate


def traits_of(function: Callable[..., Any]) -> Traits:
    """A program's traits; plain ones where it has none."""
    found: Traits = getattr(function, "trainsafe_traits", None) or Traits()
    return found
