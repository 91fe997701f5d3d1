"""The built-in axes: their names, their types, and how a word is parsed into a value.

A program adds axes of its own: see `sweep/program.py`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from pytest_trainsafe.core.usage import listing, shown
from pytest_trainsafe.errors import SweepError

if TYPE_CHECKING:
    from pytest_trainsafe.core.point import AxisValue

#: Maximum number of Points of one test, and therefore of values of one axis.
MAX_POINTS = 10_000
#: The longest timeout, one year.  The operating system's wait functions reject much longer ones.
MAX_SECONDS = 365 * 24 * 3600
#: The largest integer, in magnitude, that an axis takes.
MAX_INTEGER = 2**63 - 1
#: Maximum length of a word that an axis takes.
MAX_CHARACTERS = 100

_INTEGER = re.compile(r"-?[0-9]+")
_NUMBER = re.compile(r"-?([0-9]+\.?[0-9]*|\.[0-9]+)(e[-+]?[0-9]+)?", re.IGNORECASE)
_BOOLS = {"true": True, "1": True, "false": False, "0": False}


class Axis(NamedTuple):
    """A named dimension of a sweep and the values it takes.

    `types` holds the accepted types; True is not accepted as an int.  An axis of floats also takes
    integers, and turns them into floats.  `choices`, if not empty, lists the only values that are
    allowed, or is a function that returns them.  `minimum` is the smallest integer that is allowed.
    """

    name: str
    types: tuple[type, ...]
    minimum: int | None = None
    choices: tuple[AxisValue, ...] | Callable[[], tuple[AxisValue, ...]] = ()

    @property
    def listed(self) -> tuple[AxisValue, ...]:
        """The only values that are allowed; empty if they cannot be listed."""
        return self.choices() if callable(self.choices) else self.choices

    @property
    def allowed(self) -> str:
        """What this axis takes, in words."""
        if self.listed:
            return "one of " + listing(str(choice) for choice in self.listed)
        words = []
        for kind in self.types:
            if kind is int:
                words.append(
                    "an integer" + (f" >= {self.minimum}" if self.minimum is not None else "")
                )
            elif kind is float:
                words.append("a number")
            elif kind is bool:
                words.append("true or false")
            else:
                words.append("a word")
        return " or ".join(words) or "a value"

    def check(self, value: object) -> AxisValue:
        """Returns the value, as a float if the axis is one of floats.

        Raises SweepError if this axis does not take it.
        """
        if type(value) is int and float in self.types and int not in self.types:
            value = float(value) if abs(value) <= MAX_INTEGER else math.inf
        good = (
            type(value) in self.types
            and (not self.listed or value in self.listed)
            and (type(value) is not int or self.minimum is None or value >= self.minimum)
            and (type(value) is not float or math.isfinite(value))
        )
        if not good:
            raise SweepError(f"axis {shown(self.name)} takes {self.allowed}, not {shown(value)}")
        assert isinstance(value, (bool, int, float, str))
        if isinstance(value, int) and abs(value) > MAX_INTEGER:
            raise self._too_large(value)
        if isinstance(value, str) and not (value.isprintable() and len(value) <= MAX_CHARACTERS):
            raise SweepError(
                f"axis {shown(self.name)} takes words of at most {MAX_CHARACTERS} printable "
                f"characters, not {shown(value)}"
            )
        return value

    def parse(self, text: str) -> AxisValue:
        """Parses a word from the command line; raises SweepError if the axis does not take it."""
        for kind in self.types:
            if kind is int and _INTEGER.fullmatch(text) and len(text) > len(str(-MAX_INTEGER)):
                raise self._too_large(text)  # int() takes quadratic time on long text
            value = _read(kind, text)
            if value is not None:
                return self.check(value)
        raise SweepError(f"axis {shown(self.name)} takes {self.allowed}, not {shown(text)}")

    def _too_large(self, given: object) -> SweepError:
        return SweepError(
            f"axis {shown(self.name)} takes integers of at most 64 bits, from {-MAX_INTEGER} to "
            f"{MAX_INTEGER}, not {shown(given)}"
        )


def _read(kind: type, text: str) -> AxisValue | None:
    if kind is bool:
        return _BOOLS.get(text.lower())
    if kind is int:
        return int(text) if _INTEGER.fullmatch(text) else None
    if kind is float:
        return float(text) if _NUMBER.fullmatch(text) else None
    return text


def _dtypes() -> tuple[AxisValue, ...]:
    """The rungs that a user may select; projects add some."""
    # Every start of pytest imports this module, and few need the table.
    from pytest_trainsafe.core.rungs.table import rung_choices

    return rung_choices()


AXES: dict[str, Axis] = {
    axis.name: axis
    for axis in (
        Axis("tp", (int,), minimum=1),
        Axis("cp", (int,), minimum=1),
        Axis("dp", (int,), minimum=1),
        Axis("pp", (int,), minimum=1),
        Axis("vpp", (int,), minimum=1),
        Axis("ep", (int,), minimum=1),
        Axis("zero", (int,), choices=(0, 1, 2, 3)),
        Axis("microbatches", (int,), minimum=1),
        Axis("sp", (bool,)),
        Axis("compile", (bool,)),
        # Frameworks name their recompute modes ("full", "selective"); a bool turns it on or off.
        Axis("recompute", (bool, str)),
        Axis("dtype", (str,), choices=_dtypes),
    )
}


def check_values(axis: Axis, values: Sequence[object]) -> tuple[AxisValue, ...]:
    """Returns the values of one axis; raises SweepError unless all are valid and different."""
    if not values:
        raise SweepError(f"axis {shown(axis.name)} has no values; give {axis.allowed}")
    if len(values) > MAX_POINTS:
        raise SweepError(
            f"axis {shown(axis.name)} has {len(values)} values; a test has at most {MAX_POINTS} "
            "points, so give fewer"
        )
    checked = tuple(axis.check(value) for value in values)
    distinct = set(zip(map(type, checked), checked, strict=True))
    if len(distinct) < len(checked):
        every = listing(str(value) for value in checked)
        raise SweepError(f"axis {shown(axis.name)} has duplicate values: {every}")
    return checked
