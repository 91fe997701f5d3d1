"""A factor that equals an axis size is blamed on the axis only if nothing else can cause it."""

from __future__ import annotations

import dataclasses

import msgspec
import pytest
import torch

from pytest_trainsafe.core.finding import Pattern
from pytest_trainsafe.core.point import Point
from pytest_trainsafe.judges.compare.compare import compare
from pytest_trainsafe.judges.compare.comparison import Comparison
from pytest_trainsafe.judges.compare.fault.located import Located
from pytest_trainsafe.judges.compare.ladder.known_axis import with_known_axis
from pytest_trainsafe.judges.compare.rung import RungTraces
from pytest_trainsafe.trace.reader import Trace
from tests.support.compare.traces import Bench, Record

BY_CHANCE = "if the size matches only by chance, another factor is wrong"


def doubled(record: Record, at: dict[str, int], part: torch.Tensor) -> torch.Tensor:
    return part * 2 if record.id.kind == "main_grad" else part


def with_arguments(rung: RungTraces, arguments: str) -> RungTraces:
    """The rung, of which the candidate's program got other arguments than the reference's."""
    manifest = rung.candidate.manifest
    spec = msgspec.structs.replace(manifest.spec, arguments=arguments)
    changed = msgspec.structs.replace(manifest, spec=spec)
    ranks = rung.candidate.ranks
    return dataclasses.replace(rung, candidate=Trace(rung.candidate.path, changed, ranks))


def pattern_of(comparison: Comparison) -> Pattern:
    found = next(f.pattern for f in comparison.findings if f.pattern is not None)
    assert found.name == "scaled"
    return found


def test_at_a_point_with_one_axis_the_axis_is_the_cause(bench: Bench) -> None:
    pattern = pattern_of(compare(bench.rung(Point.of(dp=2), doubled, dtype="float64")))
    assert pattern.text == "the value is 2 times the reference, a factor of dp"
    assert pattern.cause == "a division by dp is missing, or a sum over dp counts replicas"


@pytest.mark.parametrize("point", [Point.of(dp=2, tp=1, sp=True), Point.of(dp=2, zero=1)])
def test_beside_another_axis_a_size_may_be_equal_by_chance(bench: Bench, point: Point) -> None:
    pattern = pattern_of(compare(bench.rung(point, doubled, dtype="float64")))
    assert pattern.text == "the value is 2 times the reference, which equals dp"
    assert BY_CHANCE in pattern.cause


def test_with_other_arguments_a_size_may_be_equal_by_chance(bench: Bench) -> None:
    rung = with_arguments(bench.rung(Point.of(dp=2), doubled, dtype="float64"), '{"clip":2}')
    pattern = pattern_of(compare(rung))
    assert pattern.text == "the value is 2 times the reference, which equals dp"
    assert BY_CHANCE in pattern.cause


def test_the_axis_that_a_fault_needs_is_named_before_what_has_its_size(bench: Bench) -> None:
    """At dp=4 there are 4 micro-batches: code for dp may forget to divide by either."""

    def edit(record: Record, at: dict[str, int], part: torch.Tensor) -> torch.Tensor:
        return part * 4 if record.id.kind == "main_grad" else part

    comparison = compare(bench.rung(Point.of(dp=4), edit, dtype="float64"))
    text = pattern_of(comparison).text
    assert text == "the value is 4 times the reference, which equals dp or micro-batches"
    with_known_axis(comparison, Located((), axis="dp"))
    pattern = pattern_of(comparison)
    assert pattern.text == "the value is 4 times the reference, a factor of dp"
    assert pattern.cause.endswith("counts replicas (micro-batches are as many)")


def test_of_axes_that_a_fault_needs_together_the_one_of_the_factor_is_its_cause(
    bench: Bench,
) -> None:
    located = Located((), needs=("tp", "zero"))
    assert known(bench, located).text == "the value is 2 times the reference, a factor of tp"


def test_the_number_of_micro_batches_is_never_more_than_equal(bench: Bench) -> None:
    def edit(record: Record, at: dict[str, int], part: torch.Tensor) -> torch.Tensor:
        return part * 4 if record.id.kind == "main_grad" else part

    pattern = pattern_of(compare(bench.rung(Point.of(dp=2), edit, dtype="float64")))
    assert pattern.text == "the value is 4 times the reference, which equals micro-batches"


def known(bench: Bench, located: Located) -> Pattern:
    """The pattern of gradients that are twice the reference's, after a localisation."""
    comparison = compare(bench.rung(Point.of(dp=2, tp=2), doubled, dtype="float64"))
    assert pattern_of(comparison).text.endswith("which equals dp or tp")
    with_known_axis(comparison, located)
    return pattern_of(comparison)


def test_an_axis_without_which_the_fault_is_gone_is_the_cause(bench: Bench) -> None:
    pattern = known(bench, Located((), axis="tp", not_axes=("dp",)))
    assert pattern.text == "the value is 2 times the reference, a factor of tp"
    assert pattern.cause == "a division by tp is missing, or a sum over tp counts replicas"
    assert pattern.axis == "tp"


def test_an_axis_without_which_the_fault_stays_is_not_the_cause(bench: Bench) -> None:
    pattern = known(bench, Located((), not_axes=("dp", "tp")))
    assert pattern.text == (
        "the value is 2 times the reference, which equals dp or tp by chance: the fault occurs "
        "without them too"
    )
    assert pattern.cause == "a factor is wrong, missing, or applied twice"
    assert pattern.axis == ""


def test_an_axis_that_was_not_tried_remains_possible(bench: Bench) -> None:
    pattern = known(bench, Located((), not_axes=("dp",)))
    assert pattern.text == "the value is 2 times the reference, which equals tp"
    assert "by chance" in pattern.cause
    assert "dp" not in pattern.cause
    assert pattern.axis == "tp"


def test_a_line_that_sums_the_wrong_gradients_alone_over_an_axis_counts_its_replicas(
    bench: Bench,
) -> None:
    pattern = known(bench, Located((), summed=("tp",)))
    assert pattern.text == "the value is 2 times the reference, a factor of tp"
    assert pattern.cause == "a division by tp is missing, or a sum over tp counts replicas"


@pytest.mark.parametrize(
    "located",
    [
        Located((), summed=("tp", "dp")),
        Located((), summed=("cp",)),
        Located((), not_axes=("tp", "dp"), summed=("tp",)),
    ],
)
def test_a_sum_over_several_or_other_axes_does_not_tell_which(
    bench: Bench, located: Located
) -> None:
    assert "a factor of" not in known(bench, located).text
