"""The result of a search as data: which axes a failure needs.  Reports turn it into text."""

from __future__ import annotations

from dataclasses import dataclass

from pytest_trainsafe.core.point import AxisValue, Point


@dataclass(frozen=True, slots=True)
class AxisEffect:
    """What one axis does to a failure, with all other axes as in the smallest failing Point.

    `value` is the axis' value there.  `fails` has the values with which the same failure occurs,
    `value` among them; `passes` those with which the test passes; `differs` those with which it
    ends in any other way; and `untried` those with which no Point was run.
    `reference` has the untried values with which the candidate is the reference itself.
    `possible` has the values that the rules allow while every needed axis has a value with which
    the failure occurs.  It is None if the rules were not asked, or not for all Points.
    `passed_at` is the Point with the nearest of the values `passes` at which the test passed.
    """

    axis: str
    value: AxisValue
    fails: tuple[AxisValue, ...]
    passes: tuple[AxisValue, ...] = ()
    differs: tuple[AxisValue, ...] = ()
    untried: tuple[AxisValue, ...] = ()
    reference: tuple[AxisValue, ...] = ()
    possible: tuple[AxisValue, ...] | None = None
    passed_at: Point | None = None

    @property
    def needed(self) -> bool:
        """Whether the failure depends on this axis: the test passed with another value."""
        return bool(self.passes)

    @property
    def independent(self) -> bool:
        """Whether the failure occurs with several values, and with all that were tried."""
        return len(self.fails) > 1 and not self.passes and not self.differs

    @property
    def implied(self) -> bool:
        """Whether the rules allow no value before `value` in the order of the axis' values.

        The order is that of `possible`, the cheapest first.
        """
        return self.possible is not None and self.possible[:1] == (self.value,)


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
    def alone(self) -> tuple[str, ...]:
        """The axes whose effect is unknown because the candidate is the reference without them."""
        return tuple(effect.axis for effect in self._unknown if effect.reference)

    @property
    def undecided(self) -> tuple[str, ...]:
        """The other axes whose effect is unknown.

        For each of them, the search ran no Point that differs from `point` in that axis only.
        """
        return tuple(effect.axis for effect in self._unknown if not effect.reference)

    @property
    def _unknown(self) -> list[AxisEffect]:
        alone = (e for e in self.effects if not e.needed and not e.differs and not e.implied)
        return [effect for effect in alone if len(effect.fails) == 1]
