"""The source of a fuzz test's Points, which its strategy and its decorator share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pytest_trainsafe.config.settings import Settings
from pytest_trainsafe.config.values import MAX_RANKS
from pytest_trainsafe.core.mesh import Mesh
from pytest_trainsafe.core.point import Point
from pytest_trainsafe.core.usage import shown
from pytest_trainsafe.errors import ArgumentError, SweepError
from pytest_trainsafe.sweep.marker import Declaration, read_marker
from pytest_trainsafe.sweep.product import override
from pytest_trainsafe.sweep.program import Program, resolve
from pytest_trainsafe.sweep.search.space import Space, no_rule
from pytest_trainsafe.sweep.search.values import open_values
from pytest_trainsafe.sweep.signature import SETTING_WORDS
from pytest_trainsafe.sweep.validity import Rule

if TYPE_CHECKING:
    from pytest_trainsafe.judges.metamorphic.relations import Relation


class PointSource:
    """The declaration of a fuzz test, and the space of Points that are drawn for it.

    While the test runs, `--trainsafe-sweep` and `--trainsafe-max-world-size` may restrict `space`;
    `narrowed` is whether they do.
    `examples` runs the Points; it is None while the test does not run.  Once the first failure is
    explained, `settled` replaces drawn Points that fail for the same reason by the smallest one.
    `relations` are asserted at each Point after the test.  If `alone` is true, Points at which the
    candidate is the same Run as the reference are drawn too; otherwise such Points are invalid.
    """

    def __init__(self, declaration: Declaration, max_world_size: int) -> None:
        self.declaration = declaration
        self.max_world_size = max_world_size
        self.narrowed = False
        self.relations: tuple[Relation, ...] = ()
        self.alone = False
        #: The Examples of the running test, which the decorator sets.
        self.examples: Any = None
        self.settled: Callable[[Point], Point] | None = None
        self.space = self._space(declaration, Settings(), no_rule)

    def __repr__(self) -> str:
        axes = ", ".join(axis.name for axis, _ in self.declaration.axes)
        return f"<points of {self.declaration.program.name} over {axes}>"

    def begin(self, settings: Settings, rule: Rule) -> None:
        """Applies the settings of this pytest run.  Raises SweepError if no Point is valid."""
        axes = override(self.declaration.axes, settings.sweep)
        fewer_ranks = settings.max_world_size < self.max_world_size
        self.narrowed = axes != self.declaration.axes or fewer_ranks
        self.space = self._space(replace(self.declaration, axes=axes), settings, rule)
        assert self.space.bases  # computing it raises SweepError if no Point is valid

    def end(self) -> None:
        """Resets `narrowed`, `examples` and `settled`, which belong to one pytest run."""
        self.narrowed, self.examples, self.settled = False, None, None

    def _space(self, declaration: Declaration, settings: Settings, rule: Rule) -> Space:
        most = min(self.max_world_size, settings.max_world_size)
        return Space(declaration, settings._replace(max_world_size=most), rule, self.alone)


def point_source(
    program: object, max_world_size: int, keywords: Mapping[str, object]
) -> PointSource:
    """The source of a program's Points; `keywords` are axes, and settings as in the marker.

    An axis has a list of values, one value, a range, or `...` for values that fit it.
    Raises SweepError if an axis is invalid or there is none, and ArgumentError if
    `max_world_size` is invalid.
    """
    if type(max_world_size) is not int or not 1 <= max_world_size <= MAX_RANKS:
        raise ArgumentError(
            f"max_world_size takes an integer from 1 to {MAX_RANKS}, not {shown(max_world_size)}"
        )
    resolved = resolve(program)
    mesh = keywords.get("mesh")
    if isinstance(mesh, Mesh):
        resolved = replace(resolved, traits=replace(resolved.traits, mesh=mesh))
    words = {name: _values(resolved, name, v, max_world_size) for name, v in keywords.items()}
    declaration = read_marker([program], words)
    if not declaration.axes:
        raise SweepError(
            "a fuzz test needs at least one axis, such as tp=[1, 2]; the literal `...`, as in "
            "tp=..., stands for all values that fit. An axis that is not named keeps its default"
        )
    return PointSource(declaration, max_world_size)


def _values(program: Program, name: str, given: object, most: int) -> object:
    if name in SETTING_WORDS:
        return given
    if given is ...:
        return list(open_values(program, name, most))
    return list(given) if isinstance(given, range) else given
