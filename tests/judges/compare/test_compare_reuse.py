"""Tolerances of a reference are computed once, and tensors with equal bits are not loaded."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
import torch
from cachetools import LRUCache

from pytest_trainsafe.core.point import Point
from pytest_trainsafe.core.rungs.table import rung_named
from pytest_trainsafe.judges.compare.compare import compare
from pytest_trainsafe.judges.compare.comparison import Comparison
from pytest_trainsafe.judges.compare.rung import RungTraces
from pytest_trainsafe.judges.compare.tolerance import reference_tolerances
from pytest_trainsafe.trace.reader import Trace
from pytest_trainsafe.trace.schema import TensorEvent
from tests.support.compare.traces import Bench, Record, only, training

POINT = Point.of(tp=2, cp=2)
DTYPES = ("float64", "float32", "bfloat16")


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> Counter[Path]:
    """How many tensors were loaded of each trace."""
    counted: Counter[Path] = Counter()
    load = Trace.load

    def counting(trace: Trace, rank: int, event: TensorEvent) -> torch.Tensor:
        counted[trace.path] += 1
        return load(trace, rank, event)

    monkeypatch.setattr(Trace, "load", counting)
    return counted


@pytest.fixture(autouse=True)
def forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replaces the cache of tolerances, which other tests fill for the same references."""
    monkeypatch.setattr(
        reference_tolerances,
        "_cache",
        LRUCache(reference_tolerances.KEPT, reference_tolerances._bytes),
    )


def reference_itself(dtype: str, bench: Bench, point: Point, **options: object) -> RungTraces:
    """A candidate that computes the bits of the bench's reference."""
    noise = rung_named(dtype).epsilon / (8 if dtype == "bfloat16" else 1)
    return bench.rung(point, dtype=dtype, records=training(dtype, noise, 1), **options)  # type: ignore[arg-type]


def facts(found: Comparison) -> tuple[object, ...]:
    return found.worst, found.worst_id, found.compared, found.insensitive, found.moved


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_comparison_is_the_same_with_and_without_cached_tolerances(
    bench: Bench, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rung = bench.rung(POINT, dtype=dtype)
    first, again = compare(rung), compare(rung)
    monkeypatch.setattr(reference_tolerances, "_cache", LRUCache(0, reference_tolerances._bytes))
    uncached = compare(rung)
    assert facts(first) == facts(again) == facts(uncached)
    assert first.worst > 0


def test_perturbed_and_shadow_runs_are_loaded_for_the_first_candidate_only(
    bench: Bench, loads: Counter[Path]
) -> None:
    first, second = bench.rung(POINT), bench.rung(Point.of(dp=2))
    compare(first)
    assert first.perturbed is not None
    assert first.shadow is not None
    measures = (first.perturbed.path, first.shadow.path)
    before = [loads[path] for path in measures]
    assert min(before) > 0
    assert not compare(second).failed
    assert [loads[path] for path in measures] == before


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("point", [Point.of(), Point.of(dp=2)], ids=str)
def test_a_candidate_with_equal_bits_passes_without_loading_a_tensor(
    bench: Bench, dtype: str, point: Point, loads: Counter[Path]
) -> None:
    compare(bench.rung(POINT, dtype=dtype))
    usual = compare(bench.rung(point, dtype=dtype))
    loads.clear()
    rung = reference_itself(dtype, bench, point)
    found = compare(rung)
    assert (found.findings, found.worst) == ([], 0.0)
    assert (found.compared, found.moved) == (usual.compared, usual.moved)
    assert found.insensitive == usual.insensitive
    assert not loads


def test_a_missing_replica_is_reported_although_the_other_ranks_have_equal_bits(
    bench: Bench,
) -> None:
    def dropped(record: Record, at: dict[str, int], part: torch.Tensor) -> torch.Tensor | None:
        return None if at["tp"] == 1 else part

    edit = only("main_grad", "norm.weight", dropped)
    found = compare(reference_itself("float32", bench, Point.of(tp=2), edit=edit))
    assert {finding.check for finding in found.findings} == {"missing"}


def test_a_differing_replica_is_reported_although_the_first_rank_has_equal_bits(
    bench: Bench,
) -> None:
    def off(record: Record, at: dict[str, int], part: torch.Tensor) -> torch.Tensor:
        return part * (1 + 1e-6) if at["tp"] == 1 else part

    edit = only("main_grad", "norm.weight", off)
    found = compare(reference_itself("float32", bench, Point.of(tp=2), edit=edit))
    assert {finding.check for finding in found.findings} == {"replicas"}


def test_a_non_finite_reference_is_inconclusive_although_the_candidate_is_equal(
    bench: Bench,
) -> None:
    def overflowed(record: Record, at: dict[str, int], part: torch.Tensor) -> torch.Tensor:
        return torch.full_like(part, float("inf"))

    edit = only("activation", "fc1.output", overflowed)
    records = training("float32", rung_named("float32").epsilon, 1)
    rung = bench.rung(Point.of(), edit, records=records)
    rung = RungTraces(rung.dtype, rung.candidate, rung.candidate, rung.perturbed, rung.shadow)
    checks = {(finding.check, finding.verdict) for finding in compare(rung).findings}
    assert checks == {("reference-finite", "inconclusive")}
