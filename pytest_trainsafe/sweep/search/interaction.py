"""The result of a search as data: which axes a failure needs.  Reports turn it into text."""

from __future__ import annotations

from dataclasses import dataclass

from pytest_trainsafe.core.point import AxisValue, Point


@dataclass(frozen=True, slots=True)
class AxisEffect:
    """What one axis does to a failure, with all other axes as in the smallest failing Point.

    `value` is the axis' value there.  `fails` has the values with which the same failure occurs,
    `value` among them; `passes` those with which the test passes; `differs` those with which it
    fails in another way.  Values that are not valid with the other axes' values are in none of
    them.  `implied` says that no smaller value is valid together with the axes that are needed.
    """

    axis: str
    value: AxisValue
    fails: tuple[AxisValue, ...]
    passes: tuple[AxisValue, ...] = ()
    differs: tuple[AxisValue, ...] = ()
    implied: bool = False

    @property
    def needed(self) -> bool:
        """Whether the failure depends on this axis."""
        return bool(self.passes)

    @property
    def independent(self) -> bool:
        """Whether the failure occurs with several values, and with all that were tried."""
        return len(self.fails) > 1 and not self.passes and not self.differs


@dataclass(frozen=True, slots=True)
class Interaction:
    """The smallest failing Point that was found, and the effect of each axis with several values.

    `tried` is the number of Points that the search ran.  `complete` is False if it stopped at its
    limit, so that a smaller Point may fail too and axes may not have been varied.
    """

    point: Point
    effects: tuple[AxisEffect, ...]
    tried: int
    complete: bool = True

    @property
    def needs(self) -> tuple[AxisEffect, ...]:
        """The axes on which the failure depends."""
        return tuple(effect for effect in self.effects if effect.needed)

    @property
    def implied(self) -> tuple[AxisEffect, ...]:
        """The axes that can have no cheaper value while the needed axes keep theirs."""
        return tuple(effect for effect in self.effects if effect.implied and not effect.needed)

    @property
    def independent(self) -> tuple[str, ...]:
        """The axes that were varied without any effect, and are not implied."""
        return tuple(e.axis for e in self.effects if e.independent and not e.implied)

    @property
    def undecided(self) -> tuple[str, ...]:
        """The axes whose effect is unknown.

        For each of them, the search ran no Point that differs from `point` in that axis only.
        """
        alone = (e for e in self.effects if not e.needed and not e.differs and not e.implied)
        return tuple(effect.axis for effect in alone if len(effect.fails) == 1)
