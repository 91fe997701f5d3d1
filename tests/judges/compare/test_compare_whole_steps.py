"""In whole steps the loss comes before gradients, and ranks that saw the same data lead."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
import torch

from pytest_trainsafe.core.finding import Finding
from pytest_trainsafe.core.layout import Partial
from pytest_trainsafe.core.point import Point
from pytest_trainsafe.core.tensor_id import TensorId
from pytest_trainsafe.judges.compare.compare import compare
from pytest_trainsafe.judges.compare.guards.leading import led_by_setup, setup_hints
from pytest_trainsafe.judges.compare.guards.vacuity import guard
from pytest_trainsafe.judges.compare.judgement import lead_of
from pytest_trainsafe.judges.compare.localize.code.places import Places
from pytest_trainsafe.judges.compare.localize.initial import whole_steps
from pytest_trainsafe.judges.compare.rung import RungTraces
from pytest_trainsafe.sweep.program import Program
from pytest_trainsafe.trace.facts import CollectiveEvent, Site
from pytest_trainsafe.trace.reader import RankTrace, Trace
from pytest_trainsafe.trace.schema import InputEvent, NoteEvent
from tests.support.compare.traces import SINGLE, Edit, Record, draw, healthy, training, write

DP = Point.of(dp=2)
LOSS = TensorId(0, None, "loss", "", "loss")
REPORTS, CALLS = Site("loss", "/me/fit.py:30"), Site("model", "/me/fit.py:28")

#: The inputs of the calls of a model in a step, by dp rank.
Inputs = Callable[[int], tuple[str, ...]]


def whole(epsilon: float, seed: int) -> list[Record]:
    """A step of a program that marks no micro-batch, and reports its loss at the end."""
    records = [r for r in training("float64", epsilon, seed, 1) if r.id.microbatch is None]
    loss = Record(LOSS, draw("loss", ()).abs() * (1 + epsilon * seed / 8), (Partial("dp", "avg"),))
    return [*records, loss]


def made(
    folder: Path,
    edit: Edit,
    inputs: Inputs | None = None,
    facts: tuple[msgspec.Struct, ...] = (REPORTS,),
) -> RungTraces:
    """A rung whose candidate has `inputs`; the reference has those of all healthy ranks."""

    def trace(name: str, seed: int, point: Point = SINGLE, change: Edit = healthy) -> Trace:
        epsilon = 2.0**-52
        level = NoteEvent("level", "step")
        notes = (level, *facts) if point is DP else (level,)
        opened = write(
            folder / name, whole(epsilon, seed), point, "float64", change, notes, inputs=None
        )
        return opened.with_ranks([without_marks(rank) for rank in opened.ranks])

    def without_marks(rank: RankTrace) -> RankTrace:
        steps = [msgspec.structs.replace(step, microbatches=0) for step in rank.steps]
        tensors = {
            id: msgspec.structs.replace(event, layout_source="default")
            for id, event in rank.tensors.items()
        }
        return dataclasses.replace(rank, steps=steps, tensors=tensors)

    def fed(opened: Trace, calls: list[tuple[str, ...]]) -> Trace:
        ranks = [
            dataclasses.replace(
                rank, inputs=[InputEvent(0, n, (each,)) for n, each in enumerate(own)]
            )
            for rank, own in zip(opened.ranks, calls, strict=True)
        ]
        return opened.with_ranks(ranks)

    candidate = trace("candidate", 3, DP, edit)
    reference = trace("reference", 1)
    if inputs is not None:
        candidate = fed(candidate, [inputs(0), inputs(1)])
        reference = fed(reference, [("a", "b", "c", "d")])
    return RungTraces("float64", candidate, reference, trace("perturbed", 2))


def wrong(*kinds: str, apart: bool = False) -> Edit:
    """An edit that changes tensors of these kinds after the step; with `apart`, on rank 1 more."""

    def edit(record: Record, at: dict[str, int], part: torch.Tensor) -> torch.Tensor:
        if record.id.step != 0 or record.id.kind not in kinds:
            return part
        return part + (0.25 if apart and at["dp"] else 0.125) * draw("wrong", part.shape)

    return edit


def led(rung: RungTraces) -> tuple[Finding, list[str]]:
    """The leading finding of a rung that fails, and the messages of the hints beside it."""
    comparison = led_by_setup(rung, compare(rung))
    hints = setup_hints(guard(rung, comparison), comparison)
    first = lead_of([f for f in comparison.findings if f.verdict == "fail"])
    return first, [f.message for f in hints]


def located(rung: RungTraces):
    comparison = led_by_setup(rung, compare(rung))
    program = Program(path="package.fit:train")
    return whole_steps(comparison, Places(rung.candidate, program, rung.reference))


def pattern_of(rung: RungTraces) -> str:
    first, _ = led(rung)
    return first.pattern.name if first.pattern is not None else ""


def test_a_wrong_loss_leads_although_the_program_reports_it_after_the_updates(
    tmp_path: Path,
) -> None:
    rung = made(tmp_path, wrong("loss", "main_grad", "param", apart=True))
    first, _ = led(rung)
    assert first.where == LOSS
    found = located(rung)
    assert found.source == REPORTS.at
    text = found.rows[0][1]
    assert "in what makes this loss: the data, the forward or the weights that compute it" in text
    assert "backward" not in text
    assert found.rows[1][1].startswith("no call of the watched model was seen")


def test_if_the_loss_agrees_what_makes_it_is_not_suspected(tmp_path: Path) -> None:
    rung = made(tmp_path, wrong("main_grad", "param"), facts=(REPORTS, CALLS))
    first, _ = led(rung)
    assert first.where is not None
    assert first.where.kind == "main_grad"
    [(_, text)] = located(rung).rows
    assert text.startswith(
        "the loss agrees; only whole steps were compared, so the fault may be in"
    )
    assert "data" not in text


def test_a_call_of_the_watched_model_is_not_said_to_be_unseen(tmp_path: Path) -> None:
    rung = made(tmp_path, wrong("loss", "main_grad", apart=True), facts=(REPORTS, CALLS))
    assert len(located(rung).rows) == 1


def same(rank: int) -> tuple[str, ...]:
    return "a", "b"


def divided(rank: int) -> tuple[str, ...]:
    return ("c", "d") if rank else ("a", "b")


def in_one_batch(rank: int) -> tuple[str, ...]:
    """Batches of another size than the reference's have other hashes."""
    return ("x",)


@pytest.mark.parametrize(
    ("inputs", "name"), [(same, "same data"), (divided, ""), (in_one_batch, "")]
)
def test_equal_inputs_lead_if_the_reference_has_these_and_others(
    tmp_path: Path, inputs: Inputs, name: str
) -> None:
    rung = made(tmp_path, wrong("loss", "main_grad"), inputs, (REPORTS, CALLS))
    assert pattern_of(rung) == name
    first, hints = led(rung)
    if name:
        assert first.pattern is not None
        assert first.pattern.text == (
            "ranks 0 and 1 of dp saw the same data, and the reference saw others as well"
        )
        assert located(rung).source == CALLS.at
        assert hints == []
    if inputs is in_one_batch:
        assert hints == ["ranks 0 and 1 of dp saw the same data"]


def test_equal_inputs_do_not_lead_if_the_loss_agrees(tmp_path: Path) -> None:
    assert pattern_of(made(tmp_path, wrong("main_grad"), same)) == ""


SHAPE = (16, 8)
REDUCES = CollectiveEvent("all_reduce", (0, 1), "/me/fit.py:31", 0, shape=SHAPE, reduce="SUM")
MEAN = msgspec.structs.replace(REDUCES, shape=())
OBJECTS = msgspec.structs.replace(REDUCES, op="all_gather_object", shape=None)
EARLIER = msgspec.structs.replace(MEAN, step=None)


@pytest.mark.parametrize("calls", [(), (REDUCES,), (EARLIER,)])
def test_equal_losses_lead_if_no_collective_can_have_made_them_equal(
    tmp_path: Path, calls: tuple[CollectiveEvent, ...]
) -> None:
    rung = made(tmp_path, wrong("loss", "main_grad"), facts=(REPORTS, *calls))
    first, hints = led(rung)
    assert first.pattern is not None
    assert first.pattern.name == "same data"
    assert first.pattern.text.startswith("the losses of ranks 0 and 1 of dp are equal bit for bit")
    assert "or the loss does not depend on the data" in first.pattern.text
    assert (located(rung).source, located(rung).rows) == (REPORTS.at, ())
    assert hints == []


@pytest.mark.parametrize("call", [MEAN, OBJECTS])
def test_losses_that_a_collective_may_have_averaged_prove_nothing(
    tmp_path: Path, call: CollectiveEvent
) -> None:
    assert pattern_of(made(tmp_path, wrong("loss", "main_grad"), facts=(REPORTS, call))) == ""


def test_losses_that_differ_prove_nothing(tmp_path: Path) -> None:
    assert pattern_of(made(tmp_path, wrong("loss", "main_grad", apart=True))) == ""
