"""The reports of fuzz tests: failures, flaky programs, and Points without a verdict.

Plain text of at most 100 columns, like the other reports; commands are not wrapped.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence

from pytest_trainsafe.core.point import Point
from pytest_trainsafe.report.interaction import interaction_text
from pytest_trainsafe.report.rerun import NO_RUN, Rerun
from pytest_trainsafe.report.rows import head, row
from pytest_trainsafe.sweep.point_summary import plural
from pytest_trainsafe.sweep.search.interaction import Interaction

#: The most reasons without a verdict that a report lists.
MAX_REASONS = 8


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
    rerun: Rerun = NO_RUN,
    rows: Sequence[tuple[str, str]] = (),
) -> str:
    """The report of one failure of a fuzz test.

    `examples` is the number of Points that had been run when it occurred, and `failure` the report
    of the smallest failing Point.  `rerun` says how the test is run again, and `rows` are further
    labels and texts.
    """
    point = interaction.point
    lines = [*head(f"trainsafe: fuzzing {program} found a failing point: {point}"), ""]
    lines += row("interaction", interaction_text(interaction))
    for effect in interaction.effects:
        if effect.differs:
            values = ", ".join(map(str, effect.differs))
            lines += row("", f"with {effect.axis}={values} the test ends in another way")
    searched = f"{interaction.tried} points run by the search, after {examples} examples"
    if not interaction.complete:
        searched += "; it stopped at its limit, so a smaller point may fail too"
    lines += row("searched", searched)
    for label, text in rows:
        lines += row(label, text)
    return "\n".join([*lines, *_again(point, nodeid, rerun), "", failure])


def _again(point: Point, nodeid: str, rerun: Rerun) -> list[str]:
    lines = row("example", example_line(point), wrapped=False)
    command = rerun.command(nodeid, f" --trainsafe-sweep {sweep_words(point)}")
    return lines + row("rerun", command, wrapped=False)


def others_text(failures: int, further: int, at_limit: bool) -> str:
    """What the search for other failures found; "" if it ran nothing and found nothing.

    `failures` is the number of failures in all, and `further` the number of examples that were run
    after the first.  `at_limit` is whether the search ended because there were enough failures.
    """
    ran = f"{plural(further, 'further example')} after the first failure"
    if failures == 1:
        return f"no other failure in {ran}" if further else ""
    text = (
        f"{failures} failures, which differ in the first wrong tensor or in how it is wrong, and "
        f"may still have one cause; {ran}"
    )
    return f"{text}; the search ended at max_failures={failures}" if at_limit else text


def no_verdict_text(reasons: Mapping[str, Sequence[Point]], run: int) -> str:
    """The Points without a verdict: `2 of 9 points have no verdict: inconclusive: ... (2, ...)`.

    `reasons` has the Points of each reason, and `run` is the number of all Points that were run.
    """
    if not reasons:
        return ""
    count = sum(map(len, reasons.values()))
    verb = "has" if count == 1 else "have"
    shown = [
        f"{reason} ({plural(len(points), 'point')}, such as {points[0]})"
        for reason, points in [*reasons.items()][:MAX_REASONS]
    ]
    more = len(reasons) - len(shown)
    rest = [f"and {more} more reasons"] if more > 0 else []
    return (
        f"{count} of {plural(run, 'point')} {verb} no verdict, which is not a pass: "
        f"{'; '.join([*shown, *rest])}"
    )


def inconclusive_message(
    program: str, nodeid: str, point: Point, reasons: str, report: str, rerun: Rerun
) -> str:
    """The report of a fuzz test without a failure, some of whose Points have no verdict.

    `point` is one of these Points and `report` its report; `reasons` is `no_verdict_text`.
    """
    lines = [*head(f"trainsafe: fuzzing {program} found no failure, but has not passed"), ""]
    lines += row("no verdict", reasons)
    return "\n".join([*lines, *_again(point, nodeid, rerun), "", report])


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
