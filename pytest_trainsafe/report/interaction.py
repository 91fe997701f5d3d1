"""The report of a fuzz test: the axes that the failure needs, and how to run it again.

Plain text of at most 100 columns, like the other reports; commands are not wrapped.
"""

from __future__ import annotations

import shlex

from pytest_trainsafe.core.point import AxisValue, Point
from pytest_trainsafe.report.rows import head, row
from pytest_trainsafe.sweep.search.interaction import AxisEffect, Interaction


def interaction_text(interaction: Interaction) -> str:
    """The axes that a failure needs: `needs tp >= 2 and sp=False; independent of dtype, dp`."""
    needs = " and ".join(condition(effect) for effect in interaction.needs)
    parts = [f"needs {needs}" if needs else "needs none of the axes that could be varied"]
    if interaction.implied:
        implied = " and ".join(condition(effect) for effect in interaction.implied)
        parts[0] += f" (valid only with {implied})"
    if interaction.independent:
        parts.append(f"independent of {', '.join(interaction.independent)}")
    if interaction.undecided:
        fixed = ", ".join(interaction.undecided)
        parts.append(f"not varied alone, as no other value is valid here: {fixed}")
    return "; ".join(parts)


def condition(effect: AxisEffect) -> str:
    """The values of an axis with which a test fails: `tp >= 2`, `layers <= 2`, `sp=True`."""
    axis, fails, passes = effect.axis, effect.fails, effect.passes
    if len(fails) > 1 and not _is_size(effect.value):
        return f"{axis} one of {', '.join(map(str, fails))}"
    if not _is_size(effect.value):
        return f"{axis}={effect.value}"
    numbers, others = [int(value) for value in fails], [int(value) for value in passes]
    if all(other < min(numbers) for other in others):
        return f"{axis} >= {min(numbers)}"
    if all(other > max(numbers) for other in others):
        return f"{axis} <= {max(numbers)}"
    return f"{axis}={numbers[0]}" if len(numbers) == 1 else f"{axis} one of {numbers}"


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
            lines += row("", f"with {effect.axis}={values} the test fails differently")
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
