"""A wrong setup of the run leads the report of a failure that it causes, and of no other."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from pytest_trainsafe.core.finding import Finding
from pytest_trainsafe.core.point import Point
from pytest_trainsafe.judges.compare.compare import compare
from pytest_trainsafe.judges.compare.comparison import Comparison
from pytest_trainsafe.judges.compare.guards.leading import led_by_setup, setup_hints
from pytest_trainsafe.judges.compare.guards.vacuity import guard
from pytest_trainsafe.judges.compare.judgement import lead_of
from pytest_trainsafe.judges.compare.rung import RungTraces
from pytest_trainsafe.trace.schema import NoteEvent
from tests.support.compare.traces import MICROBATCHES, Bench, Record, draw, healthy, only, training

DP = Point.of(dp=2)
SHARE = MICROBATCHES // 2


def sampled_again(record: Record, at: dict[str, int], part: torch.Tensor) -> torch.Tensor:
    """What dp rank 1 records if it sees the data of dp rank 0: the values of its micro-batches."""
    id = record.id
    if at["dp"] == 0 or id.microbatch is None:
        return part
    names = {"activation": "activation", "activation_grad": "gradient", "param_grad": "grad"}
    what = names.get(id.kind, id.kind)
    path = id.path if id.kind == "param_grad" else id.module
    name = f"{what} {id.step} {id.microbatch - SHARE} {path}".rstrip()
    return draw(name, record.tensor.shape).to(part.dtype)


def of_every_rank(at: dict[str, int], index: int) -> object:
    """The inputs of a program without a sampler, of which every dp rank takes the first ones."""
    return index % SHARE if at["dp"] else index


def same_on_all(at: dict[str, int], index: int) -> object:
    return "the same"


def led(rung: RungTraces) -> tuple[Finding, Comparison]:
    """The leading finding of a rung that fails, and the whole comparison."""
    comparison = led_by_setup(rung, compare(rung))
    return lead_of([f for f in comparison.findings if f.verdict == "fail"]), comparison


@pytest.mark.parametrize("inputs", [of_every_rank, None])
def test_a_missing_sampler_leads_the_failure_that_it_causes(bench: Bench, inputs: object) -> None:
    """Without recorded inputs, equal losses and gradients show that the data are the same."""
    records = training("float64")
    rung = bench.rung(DP, sampled_again, "float64", records, inputs=inputs)
    if inputs is None:
        rung = without_inputs(rung)
    first, comparison = led(rung)
    assert first.where is not None
    assert (first.where.kind, first.where.microbatch) == ("activation", SHARE)
    assert first.pattern is not None
    assert first.pattern.text.startswith("ranks 0 and 1 of dp saw the same data: ")
    assert "micro-batches 0 and 2" in first.pattern.text
    assert first.pattern.cause.startswith("the program does not divide its data over dp")
    assert (first.pattern.axis, first.source) == ("dp", "")
    assert "dp-inputs" not in [f.check for f in setup_hints(guard(rung, comparison), comparison)]


def without_inputs(rung: RungTraces) -> RungTraces:
    """The rung as if the reference had recorded no inputs either."""
    reference = rung.reference
    ranks = [dataclasses.replace(rank, inputs=[]) for rank in reference.ranks]
    return dataclasses.replace(rung, reference=reference.with_ranks(ranks))


def double(record: Record, at: dict[str, int], part: torch.Tensor) -> torch.Tensor:
    return part * 2


def test_data_that_the_reference_repeats_too_do_not_lead(bench: Bench) -> None:
    """A program may train on one batch only; then a wrong output has another cause."""
    rung = bench.rung(
        DP, only("activation", "fc1.output", double), "float64", inputs=lambda at, index: "one"
    )
    ranks = [
        dataclasses.replace(
            rank, inputs=[type(e)(e.step, e.microbatch, ("one",)) for e in rank.inputs]
        )
        for rank in rung.reference.ranks
    ]
    rung = dataclasses.replace(rung, reference=rung.reference.with_ranks(ranks))
    first, comparison = led(rung)
    assert first.pattern is not None
    assert first.pattern.name == "scaled"
    assert "dp-inputs" in [f.check for f in setup_hints(guard(rung, comparison), comparison)]


@pytest.mark.parametrize("kind", ["activation_grad", "main_grad"])
def test_the_same_data_do_not_lead_a_failure_after_the_forward(bench: Bench, kind: str) -> None:
    path = "fc1.output" if kind == "activation_grad" else "fc1.bias"
    rung = bench.rung(DP, only(kind, path, double), "float64", inputs=of_every_rank)
    first, _ = led(rung)
    assert first.pattern is not None
    assert first.pattern.name == "scaled"


def test_different_data_do_not_lead(bench: Bench) -> None:
    first, _ = led(bench.rung(DP, only("activation", "fc1.output", double), "float64"))
    assert first.pattern is not None
    assert first.pattern.name == "scaled"


def unmoved(record: Record, at: dict[str, int], part: torch.Tensor) -> torch.Tensor:
    """What a program records that never steps: parameters keep their initial values."""
    id = record.id
    for step in range(id.step + 1 if id.kind == "param" else 0):
        part = part + (0.01 * draw(f"update {step} {id.path}", record.tensor.shape)).to(part.dtype)
    return part


@pytest.mark.parametrize(("skipped", "name"), [(0, "skipped step"), (1, "zero")])
def test_a_skipped_step_leads_the_missing_updates_of_that_step_only(
    bench: Bench, skipped: int, name: str
) -> None:
    notes = [NoteEvent("skipped", f"step {skipped}, GradScaler.step() did not step")]
    rung = bench.rung(DP, unmoved, "float64", notes=notes)
    first, _ = led(rung)
    assert first.where is not None
    assert (first.where.kind, first.where.step) == ("update", 0)
    assert first.pattern is not None
    assert first.pattern.name == name
    assert ("skipped an optimizer step" in first.pattern.text) == (skipped == 0)


def test_a_clean_comparison_is_not_changed(bench: Bench) -> None:
    rung = bench.rung(DP, healthy, "float64", inputs=same_on_all)
    comparison = compare(rung)
    assert led_by_setup(rung, comparison) is comparison
