"""The report of a fuzz test: the axes that the failure needs, and how to run it again.

Plain text of at most 100 columns, like the other reports; commands are not wrapped.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from pytest_trainsafe.core.point import AxisValue, Point
from pytest_trainsafe.report.rows import head, row
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
        parts.append(f"not varied alone, as the candidate is the reference itself without: {axes}")
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


def example_line(point: Point) -> str:
    """The decorator that makes a test run a Point first: `@example(point=Point.of(tp=2))`."""
    return f"@example(point={point!r})"


def sweep_words(point: Point) -> str:
    """The arguments of `--trainsafe-sweep` that select only this Point: `tp=2 sp=True`."""
    return " ".join(shlex.quote(f"{axis}={value}") for axis, value in point)


def fuzz_message(
    program: str,
    nodeid: str,
    interaction: Interaction,
    examples: int,
    failure: str,
    options: str = "",
) -> str:
    """The report of a failed fuzz test.

    `examples` is the number of Points that had been run when the first one failed, and `failure`
    the report of the smallest failing Point.  `options` are appended to the rerun command.
    """
    point = interaction.point
    lines = [*head(f"trainsafe: fuzzing {program} found a failing point: {point}"), ""]
    lines += row("interaction", interaction_text(interaction))
    for effect in interaction.effects:
        if effect.differs:
            values = ", ".join(map(str, effect.differs))
            lines += row("", f"with {effect.axis}={values} the test neither passes nor fails so")
    searched = f"{interaction.tried} points run by the search, after {examples} examples"
    if not interaction.complete:
        searched += "; it stopped at its limit, so a smaller point may fail too"
    lines += row("searched", searched)
    lines += row("example", example_line(point), wrapped=False)
    command = f"pytest {shlex.quote(nodeid)} --trainsafe-sweep {sweep_words(point)}{options}"
    lines += row("rerun", command, wrapped=False)
    return "\n".join([*lines, "", failure])


def flaky_message(program: str, point: Point, why: str, cause: str, failure: str) -> str:
    """The report on a program whose failure is not reproducible, so that it is no finding.

    `why` describes the difference between the program's Runs, and `cause` names the reason for this
    difference.  `failure` is the report of the failure.
    """
    lines = [
        *head(f"trainsafe: {program} is flaky at {point}, so its failure is not a finding"),
        "",
    ]
    lines += row("flaky", why)
    lines += row("cause", cause)
    lines += row(
        "so",
        "make the program deterministic first: seed every generator from ctx.seed, and see "
        "assert_deterministic",
    )
    lines += row("failure", failure.partition("\n")[0])
    return "\n".join(lines)
