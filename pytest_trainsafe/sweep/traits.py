"""Options of a program that its signature does not express.  Read by the sweep and the session.

Programs for a framework and programs with mesh axes of their own have traits; other functions
need none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from pytest_trainsafe.core.mesh import DEFAULT, Mesh
from pytest_trainsafe.core.rungs.table import DTYPES, WIDEST, path_of, rung_choices
from pytest_trainsafe.core.usage import shown
from pytest_trainsafe.errors import SweepError

_Function = TypeVar("_Function", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Traits:
    """The options of a program.

    `candidate` has arguments that only a candidate receives, unless the test overrides them.
    `how` names parameters that change how the program trains, but not the result that is expected.
    If a test uses one as an axis, only the candidate receives its value.
    `sizes` names parameters that are sizes of tensors, for which small ones may stand in a proof.
    `dtypes` limits the dtypes in which a candidate is judged; references are not limited.
    `inputs` are files that the program reads; they are part of the cache keys of its references.
    `unavailable` is called with the Case before a candidate runs, and returns why this machine
    cannot run it, or "".  `mesh` declares the mesh axes; the product of their sizes is the world
    size. `relations` are the metamorphic relations that hold for the program. `refusals` names the
    classes of exceptions by which the program or its framework refuses a Point that it does not
    support.  A fuzz test goes on after a refusal, which is no verdict.
    """

    candidate: Mapping[str, object] = field(default_factory=dict)
    how: frozenset[str] = frozenset()
    sizes: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = DTYPES
    inputs: tuple[str, ...] = ()
    unavailable: Callable[[Any], str] | None = None
    mesh: Mesh = DEFAULT
    relations: tuple[Any, ...] = ()
    refusals: frozenset[str] = frozenset({"NotImplementedError"})

    @property
    def drawn_dtypes(self) -> tuple[str, ...]:
        """The dtypes in which a candidate can be judged, with the rungs that are added to them.

        Added rungs compute in place of the widest dtype, so they are left out if it is.
        """
        added = WIDEST in self.dtypes
        return tuple(
            name for name in rung_choices() if name in self.dtypes or (added and path_of(name))
        )


def give_traits(function: _Function, traits: Traits) -> _Function:
    """Attaches traits to a program and returns it."""
    function.trainsafe_traits = traits  # type: ignore[attr-defined]
    return function


def on_mesh(mesh: Mesh) -> Callable[[_Function], _Function]:
    """Gives a program mesh axes of its own: `@on_mesh(Mesh("pp", "dp", "tp"))`.

    The program's sweeps can then use these axes; see `Mesh`.
    """
    if not isinstance(mesh, Mesh):
        raise SweepError(f"on_mesh takes a Mesh, such as Mesh('pp', 'dp', 'tp'), not {shown(mesh)}")

    def decorate(function: _Function) -> _Function:
        return give_traits(function, replace(traits_of(function), mesh=mesh))

    return decorate


def sizes(*names: str) -> Callable[[_Function], _Function]:
    """Declares the parameters of a program that are sizes of tensors: `@sizes("hidden", "heads")`.

    `assert_proved_equivalent(..., sizes="small")` may then take small sizes for them.
    """
    given: tuple[object, ...] = names
    if not names or not all(isinstance(name, str) for name in given):
        raise SweepError(
            f"sizes takes names of parameters, as in @sizes('hidden'), not {shown(given)}"
        )

    def decorate(function: _Function) -> _Function:
        return give_traits(function, replace(traits_of(function), sizes=names))

    return decorate


def traits_of(function: Callable[..., Any]) -> Traits:
    """A program's traits, or the defaults if it has none."""
    found: Traits = getattr(function, "trainsafe_traits", None) or Traits()
    return found
