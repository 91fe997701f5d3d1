"""Micro-batches that dp ranks compute twice, or not at all, are reported; others are not."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
import torch

from pytest_trainsafe.core.layout import Partial
from pytest_trainsafe.core.point import Point
from pytest_trainsafe.core.tensor_id import TensorId
from pytest_trainsafe.judges.compare.compare import compare
from pytest_trainsafe.judges.compare.explain.numbering import misnumbered
from pytest_trainsafe.judges.compare.rung import RungTraces
from tests.support.compare.traces import Bench, Record, training

DP = Point.of(dp=2)


def found(rung: RungTraces) -> str:
    finding = misnumbered(rung.candidate, rung.reference, rung.dtype)
    return finding.message if finding is not None else ""


@pytest.mark.parametrize("point", [DP, Point.of(dp=4), Point.of(dp=2, tp=2), Point.of()], ids=str)
def test_micro_batches_divided_among_dp_ranks_pass(bench: Bench, point: Point) -> None:
    assert found(bench.rung(point)) == ""


def test_a_micro_batch_that_no_rank_computed_is_the_first_finding(bench: Bench) -> None:
    """This happens if a loop leaves out the last micro-batch."""

    def dropped(record: Record, at: dict[str, int], part: torch.Tensor) -> torch.Tensor | None:
        return None if record.id.microbatch == 3 else part

    rung = bench.rung(DP, dropped, inputs=None)

    assert found(rung).startswith("no rank computed micro-batch 3 of step 0, which the reference")
    first = compare(rung).findings[0]
    assert (first.check, first.verdict) == ("microbatches", "fail")


def test_dp_ranks_that_each_number_micro_batches_from_zero_are_reported(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pytest_trainsafe.trace import writer

    add = writer.RankWriter.add_tensor
    given = writer.RankWriter.add

    def numbered(self: Any, id: TensorId, *args: Any) -> None:
        number = id.microbatch
        add(self, msgspec.structs.replace(id, microbatch=number and number % 2), *args)

    def counted(self: Any, event: Any) -> None:
        if hasattr(event, "hashes"):
            event = msgspec.structs.replace(event, microbatch=event.microbatch % 2)
        given(self, event)

    reference, perturbed, shadow = bench.measures("float32")
    monkeypatch.setattr(writer.RankWriter, "add_tensor", numbered)
    monkeypatch.setattr(writer.RankWriter, "add", counted)
    candidate = bench.rung(DP).candidate
    text = found(RungTraces("float32", candidate, reference, perturbed, shadow))

    assert "ranks 0 and 1 of dp computed micro-batches 0, 1 of step 0 from different data" in text
    assert "no rank computed micro-batches 2, 3, which the reference has" in text
    assert "ctx.microbatches(total)" in text
    assert "order='split'" in text


def test_micro_batch_gradients_that_are_partial_over_dp_pass(bench: Bench) -> None:
    """The ranks of such a program divide every micro-batch among them."""
    terms = [
        Record(r.id, r.tensor, (*r.layout, Partial("dp"))) if r.id.kind == "param_grad" else r
        for r in training("float32")
    ]
    assert found(bench.rung(DP, records=terms)) == ""
