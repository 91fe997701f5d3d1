"""Of a parameter that did not move, the report says what is known of its optimizer and gradient."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from pytest_trainsafe.core.point import Point
from pytest_trainsafe.judges.compare.compare import compare
from pytest_trainsafe.judges.compare.explain.held import parameter_of, received_alone
from pytest_trainsafe.judges.compare.guards.leading import led_by_setup
from pytest_trainsafe.judges.compare.patterns.catalogue import explain
from pytest_trainsafe.judges.compare.patterns.wrong_tensor import WrongTensor
from pytest_trainsafe.judges.compare.rung import RungTraces
from pytest_trainsafe.trace.facts import Unheld
from pytest_trainsafe.trace.reader import Trace
from tests.support.compare.traces import Bench, Edit, Record, draw, only

PATH = "fc1.bias"


def still(record: Record, at: dict[str, int], part: torch.Tensor) -> torch.Tensor:
    """The initial value, as if no step had changed the parameter."""
    return draw(f"param {PATH}", tuple(record.tensor.shape)).to(part.dtype)


def with_unheld(trace: Trace, *names: str) -> Trace:
    ranks = [
        dataclasses.replace(rank, facts={**rank.facts, Unheld: [Unheld(names)]})
        for rank in trace.ranks
    ]
    return trace.with_ranks(ranks)


def cause(rung: RungTraces, name: str = "zero") -> str:
    """The cause that the report names for the update of PATH, by the name of its pattern."""
    comparison = led_by_setup(rung, compare(rung))
    found = [
        f.pattern.cause
        for f in comparison.findings
        if f.pattern is not None and f.where is not None
        if (f.where.kind, f.where.path, f.pattern.name) == ("update", PATH, name)
    ]
    assert len(found) == 1
    return found[0]


@pytest.mark.parametrize(
    ("ours", "theirs", "text"),
    [
        ((), (), "the optimizer holds the parameter and its gradient agrees, but the step does"),
        ((PATH,), (PATH,), "no watched optimizer holds the parameter: the program's own code"),
        ((PATH,), (), "no watched optimizer holds the parameter, but one does in the reference"),
    ],
)
def test_what_is_known_of_the_holder_is_said(
    bench: Bench, ours: tuple[str, ...], theirs: tuple[str, ...], text: str
) -> None:
    rung = bench.rung(Point.of(dp=2), only("param", PATH, still, step=0), "float64")
    rung = dataclasses.replace(
        rung,
        candidate=with_unheld(rung.candidate, *ours),
        reference=with_unheld(rung.reference, *theirs),
    )
    assert cause(rung).startswith(text)


def test_if_the_holders_are_not_known_nothing_is_claimed(bench: Bench) -> None:
    rung = bench.rung(Point.of(dp=2), only("param", PATH, still, step=0), "float64")
    known = dataclasses.replace(rung, reference=with_unheld(rung.reference))
    assert cause(known).startswith("the parameter is not stepped: the optimizer does not hold it, ")


@pytest.mark.parametrize("left_out", [True, False])
def test_a_parameter_without_the_states_of_the_reference_is_said_to_be_left_out(
    bench: Bench, left_out: bool
) -> None:
    first = only("param", PATH, still, step=0)

    def edit(record: Record, at: dict[str, int], part: torch.Tensor) -> torch.Tensor | None:
        state = record.id.kind == "optimizer_state" and parameter_of(record.id) == PATH
        return None if left_out and state else first(record, at, part)

    rung = bench.rung(Point.of(dp=2), edit, "float64")
    here, there = with_unheld(rung.candidate), with_unheld(rung.reference)
    found = cause(dataclasses.replace(rung, candidate=here, reference=there))
    assert found.endswith("the step leaves the parameter out") == left_out


def missing(record: Record, at: dict[str, int], part: torch.Tensor) -> None:
    """No rank records the gradient."""


def doubled(record: Record, at: dict[str, int], part: torch.Tensor) -> torch.Tensor:
    return part * 2


@pytest.mark.parametrize(
    ("path", "gradient", "text"),
    [
        (PATH, missing, "the optimizer holds the parameter, but gets no gradient of it"),
        ("*", missing, "the optimizer holds the parameter, but no gradient that it receives was"),
        (PATH, doubled, "the optimizer holds the parameter, but its step does not change it"),
    ],
)
def test_a_gradient_that_is_wrong_or_missing_is_not_said_to_agree(
    bench: Bench, path: str, gradient: Edit, text: str
) -> None:
    first = only("param", PATH, still, step=0)
    second = gradient if path == "*" else only("main_grad", path, gradient)

    def edit(record: Record, at: dict[str, int], part: torch.Tensor) -> torch.Tensor | None:
        return (second if record.id.kind == "main_grad" else first)(record, at, part)

    rung = bench.rung(Point.of(dp=2), edit, "float64")
    rung = dataclasses.replace(
        rung,
        candidate=with_unheld(rung.candidate),
        reference=with_unheld(rung.reference),
    )
    assert cause(rung).startswith(text)


def test_an_earlier_value_that_fits_a_narrow_dtype_is_not_said_to_be_rounded_to_it() -> None:
    """Initial values fit bfloat16, so that Runs of every dtype start alike."""
    initial = draw("initial", (16, 8)).to(torch.bfloat16).double()
    now = initial + 1e-3 * draw("update", (16, 8))

    def name(value: torch.Tensor) -> str:
        wrong = WrongTensor(
            value, now, [], {"dp": 2}, 1e-12, kind="param", dtype="float64",
            earlier={"of the previous step": initial},
        )  # fmt: skip
        found = explain(wrong)
        return "" if found is None else found.name

    assert name(initial) == "stale"
    assert name(now.to(torch.bfloat16).double()) == "narrower dtype"


def kept(record: Record, at: dict[str, int], part: torch.Tensor) -> torch.Tensor:
    """A parameter after a step of which a share is kept, as of a teacher that follows slowly."""
    before = draw(f"param {PATH}", tuple(record.tensor.shape)).to(part.dtype)
    return part + 0.02 * before


@pytest.mark.parametrize("ours", [(PATH,), ()])
def test_a_teacher_is_not_said_to_have_another_weight_decay(
    bench: Bench, ours: tuple[str, ...]
) -> None:
    rung = bench.rung(Point.of(dp=2), only("param", PATH, kept, step=0), "float64")
    rung = dataclasses.replace(
        rung,
        candidate=with_unheld(rung.candidate, *ours),
        reference=with_unheld(rung.reference, *ours),
    )
    found = cause(rung, "decay")
    assert found.startswith("no watched optimizer holds the parameter" if ours else "weight decay")


def test_a_gradient_that_the_candidates_optimizer_alone_receives_is_told(bench: Bench) -> None:
    rung = bench.rung(Point.of(dp=2), dtype="float64")
    assert received_alone(rung, [PATH]) == ""
    ranks = [
        dataclasses.replace(
            rank,
            tensors={
                id: event
                for id, event in rank.tensors.items()
                if (id.kind, id.path, id.step) != ("main_grad", PATH, 1)
            },
        )
        for rank in rung.reference.ranks
    ]
    without = dataclasses.replace(rung, reference=rung.reference.with_ranks(ranks))
    assert received_alone(without, [PATH]) == (
        "; it receives a gradient of it in a step in which the reference's receives none"
    )
    assert received_alone(without, ["norm.weight"]) == ""
