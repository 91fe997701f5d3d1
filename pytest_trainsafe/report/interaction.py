"""The text of an interaction: the axes that a failure of a fuzz test needs."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_trainsafe.core.point import AxisValue
from pytest_trainsafe.sweep.search.interaction import AxisEffect, Interaction


def interaction_text(interaction: Interaction) -> str:
    """The axes that a failure needs: `needs tp >= 2 and sp=False; independent of dtype, dp`."""
    needs = " and ".join(condition(effect) for effect in interaction.needs)
    parts = [f"needs {needs}" if needs else "needs none of the axes that could be varied"]
    if interaction.implied:
        implied = " and ".join(allowed(effect) for effect in interaction.implied)
        parts[0] += f" (valid only with {implied})"
    if interaction.independent:
        parts.append(f"independent of {', '.join(interaction.independent)}")
    if interaction.alone:
        axes = ", ".join(interaction.alone)
        parts.append(f"not varied alone, because without it the candidate is the reference: {axes}")
    if interaction.undecided:
        fixed = ", ".join(interaction.undecided)
        why = ", as no other value is valid here" if interaction.complete else ""
        parts.append(f"not varied alone{why}: {fixed}")
    return "; ".join(parts)


def condition(effect: AxisEffect) -> str:
    """The values of an axis with which a test fails: `tp >= 2`, `layers <= 2`, `sp=True`.

    If some values of the axis were not tried, or the test neither fails nor passes with them, the
    text has the values that fail and those that pass: `tp=2 or 3 (passes with 1)`.
    """
    if effect.untried or effect.differs:
        passes = " and ".join(map(str, effect.passes))
        return f"{_one_of(effect.axis, effect.fails)} (passes with {passes})"
    return _range(effect.axis, effect.fails, effect.passes)


def allowed(effect: AxisEffect) -> str:
    """The values of an axis that the rules allow together with the needed axes: `tp >= 2`."""
    assert effect.possible is not None, effect
    known = {*effect.fails, *effect.passes, *effect.differs, *effect.untried}
    return _range(effect.axis, effect.possible, [*(known - {*effect.possible})])


def _range(axis: str, own: Sequence[AxisValue], others: Sequence[AxisValue]) -> str:
    """A condition that the values `own` of an axis meet, and its `others` do not."""
    if not all(map(_is_size, (*own, *others))):
        return _one_of(axis, own)
    numbers, rest = [int(value) for value in own], [int(value) for value in others]
    if all(other < min(numbers) for other in rest):
        return f"{axis} >= {min(numbers)}"
    if all(other > max(numbers) for other in rest):
        return f"{axis} <= {max(numbers)}"
    return _one_of(axis, own)


def _one_of(axis: str, values: Sequence[AxisValue]) -> str:
    return f"{axis}={' or '.join(map(str, values))}"


def _is_size(value: AxisValue) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
