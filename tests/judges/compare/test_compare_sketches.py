"""Judged by sketches, healthy tensors pass, and wrong ones become suspects to be recorded again."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from pytest_trainsafe.align.sketched import is_whole
from pytest_trainsafe.core.point import Point
from pytest_trainsafe.core.tensor_id import TensorId
from pytest_trainsafe.judges.compare.compare import compare
from pytest_trainsafe.judges.compare.guards.vacuity import guard
from pytest_trainsafe.judges.compare.rerecord import tensors_to_record
from pytest_trainsafe.judges.compare.rung import RungTraces
from tests.support.compare.traces import SINGLE, Bench, Edit, Record, draw, only, write

POINT = Point.of(tp=2, cp=2)
POINTS = [POINT, Point.of(tp=2, dp=2), Point.of(dp=4)]


@pytest.fixture(scope="module")
def sketched(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    """A bench that records sketches instead of values, also of small tensors."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pytest_trainsafe.trace.writer.SIZE", 0)
        bench = Bench(tmp_path_factory.mktemp("sketched"), sketched=True)
        for dtype in ("float64", "float32", "bfloat16"):
            bench.measures(dtype)
        return bench


@pytest.fixture(autouse=True)
def _nothing_is_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pytest_trainsafe.trace.writer.SIZE", 0)


def scaled(factor: float) -> Edit:
    return lambda record, at, part: (part * factor).to(part.dtype)


def nan(record: Record, at: dict[str, int], part: torch.Tensor) -> torch.Tensor:
    part.view(-1)[0] = math.nan
    return part


def on_one_rank(record: Record, at: dict[str, int], part: torch.Tensor) -> torch.Tensor | None:
    return part * 2 if at["tp"] == 1 else part


def missing_on_one_rank(
    record: Record, at: dict[str, int], part: torch.Tensor
) -> torch.Tensor | None:
    return None if at["tp"] == 1 else part


def too_long(record: Record, at: dict[str, int], part: torch.Tensor) -> torch.Tensor:
    return torch.cat([part, part[:1]])


def another(record: Record, at: dict[str, int], part: torch.Tensor) -> torch.Tensor:
    return draw("another", tuple(part.shape)).to(part.dtype)


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16"])
@pytest.mark.parametrize("point", POINTS, ids=str)
def test_a_healthy_candidate_has_no_suspects(sketched: Bench, point: Point, dtype: str) -> None:
    rung = sketched.rung(point, dtype=dtype)
    kept = [id for id in rung.reference.ids() if is_whole(rung.reference, id)]
    found = compare(rung)

    assert {id.kind for id in kept} == {"loss"}  # scalars
    assert found.findings == []
    assert found.suspects == []
    assert guard(rung, found) == []


def test_sketches_and_full_traces_compare_the_same_tensors(sketched: Bench, bench: Bench) -> None:
    by_sketches, in_full = compare(sketched.rung(POINT)), compare(bench.rung(POINT))

    assert by_sketches.compared == in_full.compared
    assert by_sketches.moved == in_full.moved


@pytest.mark.parametrize(
    ("kind", "path", "edit", "dtype"),
    [
        ("activation", "fc1.output", scaled(1 + 1e-11), "float64"),
        ("activation_grad", "fc2.output", scaled(1 + 1e-4), "float32"),
        ("param_grad", "fc1.weight", scaled(1.1), "bfloat16"),
        ("main_grad", "norm.weight", scaled(2), "float32"),
        ("main_grad", "fc1.weight", nan, "float32"),
        ("main_grad", "norm.weight", on_one_rank, "float32"),
        ("main_grad", "norm.weight", missing_on_one_rank, "float32"),
        ("activation", "fc1.output", too_long, "float32"),
        ("optimizer_state", "fc2.weight.exp_avg", another, "float32"),
        ("param", "fc2.weight", another, "float32"),
    ],
)
def test_a_wrong_tensor_is_a_suspect(sketched: Bench, kind, path, edit, dtype) -> None:
    found = compare(sketched.rung(POINT, only(kind, path, edit), dtype))

    assert {(id.kind, id.path) for id in found.suspects} == {(kind, path)}
    assert not found.failed


def test_a_suspect_that_is_not_recorded_again_is_a_sketched_finding(sketched: Bench) -> None:
    rung = sketched.rung(POINT, only("main_grad", "fc1.weight", scaled(2)))
    doubts = {finding.check: finding.message for finding in guard(rung, compare(rung))}

    assert "fc1.weight · main_grad · step 0" in doubts["sketched"]
    assert "--trainsafe-record full" in doubts["sketched"]


@pytest.mark.parametrize(
    ("kind", "path", "edit"),
    [
        ("activation", "fc1.output", scaled(2)),
        ("main_grad", "norm.weight", on_one_rank),
        ("param", "fc2.weight", another),
    ],
)
def test_suspects_recorded_in_full_fail_like_a_direct_comparison(
    sketched: Bench, bench: Bench, kind: str, path: str, edit: Edit
) -> None:
    planted = only(kind, path, edit, step=1 if kind == "param" else 0)
    rung = bench.rung(POINT, planted)
    screened = compare(sketched.rung(POINT, planted))
    again = compare(rung, screened=screened)
    directly = compare(rung)

    def summary(finding):
        return finding.where, finding.check, finding.message, finding.pattern, finding.error

    assert again.failed
    assert [summary(f) for f in again.findings] == [summary(f) for f in directly.findings]
    assert again.suspects == []


def test_suspects_that_are_right_when_recorded_in_full_pass(sketched: Bench, bench: Bench) -> None:
    screened = compare(sketched.rung(POINT, only("main_grad", "fc1.weight", scaled(2))))
    counted = dict(compare(bench.rung(POINT)).compared)
    rung = bench.rung(POINT)
    again = compare(rung, screened=screened)

    assert again.findings == []
    assert dict(again.compared) == counted
    assert guard(rung, again) == []


def test_tensors_that_a_suspect_update_depends_on_are_recorded_again(sketched: Bench) -> None:
    rung = sketched.rung(POINT, only("param", "fc2.weight", another, step=1))
    found = compare(rung)
    kept = {(id.kind, id.step) for id in tensors_to_record(found.suspects, rung.candidate)}

    assert kept == {("param", 1), ("param", 0), ("main_grad", 0), ("main_grad", 1)}


def test_without_measured_rounding_only_tensors_with_equal_bits_are_not_suspects(
    sketched: Bench,
) -> None:
    rung = sketched.rung(POINT)
    same = RungTraces(rung.dtype, rung.reference, rung.reference)
    other = RungTraces(rung.dtype, rung.candidate, rung.reference)

    assert compare(same).suspects == []
    assert {id.kind for id in compare(other).suspects} >= {"activation", "main_grad"}


@pytest.mark.parametrize("dtype", ["float64", "bfloat16"])
def test_one_wrong_integer_among_thousands_is_a_suspect(tmp_path: Path, dtype: str) -> None:
    """Integers are compared exactly, whatever the dtype of the Run."""
    right = 11 * torch.arange(4096).reshape(64, 64)
    wrong = right.clone()
    wrong[3, 5] += 1
    id = TensorId(0, 0, "activation", "router", "output")
    good, bad = (
        write(tmp_path / str(n), [Record(id, values, ())], SINGLE, dtype, sketched=True)
        for n, values in enumerate((right, wrong))
    )

    assert compare(RungTraces(dtype, good, good, good)).suspects == []
    assert compare(RungTraces(dtype, bad, good, good)).suspects == [id]
