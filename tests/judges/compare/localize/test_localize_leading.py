"""Besides the code at fault, a report names the line that made, called or installed it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
import torch

from pytest_trainsafe.core.point import Point
from pytest_trainsafe.judges.compare.localize.code.lines import NOWHERE, set_up
from pytest_trainsafe.judges.compare.localize.code.places import Places
from pytest_trainsafe.judges.compare.rung import RungTraces
from pytest_trainsafe.trace.facts import Annotations, Caller, Made, SetUp, Site
from pytest_trainsafe.trace.schema import ModuleEvent, NoteEvent
from tests.support.compare.clipped_traces import rung
from tests.support.compare.traces import Record, only, training, write
from tests.support.localize.blamed_traces import (
    PROGRAM,
    calling,
    described,
    located_faults,
    noting,
    text_of,
)
from tests.support.localize.call_traces import Flow, flow, values
from tests.support.localize.call_traces import rung as called
from tests.support.localize.said import said

TP = Point.of(tp=2)
MODEL = Site("model", "/me/fit.py:30")
BACKWARD = Site("backward", "/me/fit.py:31")
PLACED = SetUp("norm", "/me/apply.py:7")
MADE = Made("output", "norm", "/me/split.py:4")


def look_at(wrong: RungTraces, *facts: msgspec.Struct) -> str:
    """The description of the code at fault."""
    return located_faults(noting(wrong, *facts)).what


@pytest.fixture(scope="module")
def of_norm(tmp_path_factory: pytest.TempPathFactory) -> RungTraces:
    """The output of the norm is wrong."""
    differs = only("activation", "norm.output", lambda r, at, part: part + 1)
    return calling(rung(tmp_path_factory.mktemp("norm"), TP, differs), fc1="", norm="")


def test_a_faulty_module_is_reported_with_the_line_that_put_it_into_the_model(
    of_norm: RungTraces,
) -> None:
    assert look_at(of_norm, PLACED) == "module class Norm; norm is set up at /me/apply.py:7"


def test_the_line_that_makes_a_modules_output_is_preferred_to_the_line_of_its_set_up(
    of_norm: RungTraces,
) -> None:
    found = look_at(of_norm, PLACED, MADE)
    assert found == "module class Norm; its output is made at /me/split.py:4"


def test_lines_of_modules_that_are_not_faulty_are_not_named(of_norm: RungTraces) -> None:
    others = SetUp("fc1", "/me/apply.py:7"), Made("output", "fc1", "/me/split.py:4")
    assert look_at(of_norm, *others) == "module class Norm"


def test_lines_in_an_installed_package_and_the_line_of_the_class_itself_are_not_named(
    of_norm: RungTraces,
) -> None:
    for line in (located_faults(of_norm).source, "/env/site-packages/framework/loop.py:5"):
        facts = SetUp("norm", line), Made("output", "norm", line)
        assert look_at(of_norm, *facts) == "module class Norm"


@pytest.fixture(scope="module")
def uncalled(tmp_path_factory: pytest.TempPathFactory) -> RungTraces:
    """The root never calls one of its modules."""

    def without(record: Record, at: dict[str, int], part: torch.Tensor) -> torch.Tensor | None:
        flows = record.id.kind in ("activation", "activation_grad", "param_grad")
        return None if record.id.module == "fc1" and flows else part

    made = rung(tmp_path_factory.mktemp("uncalled"), TP, without)
    return calling(made, fc1="", fc2="", norm="")


def test_an_uncalled_module_is_reported_with_the_line_that_calls_its_sibling(
    uncalled: RungTraces,
) -> None:
    calls = Caller("norm", "fc2", "/me/other.py:1"), Caller("fc2", "", "/me/chunks.py:9")
    assert look_at(uncalled, *calls) == "module class Model; fc2 is called at /me/chunks.py:9"


def test_an_uncalled_module_is_reported_with_the_functions_that_its_caller_has(
    uncalled: RungTraces,
) -> None:
    def having(*lines: str) -> str:
        functions = tuple((f"run_{number}", line) for number, line in enumerate(lines))
        model = ModuleEvent("", "Model", "/me/model.py:3", functions=functions)
        return look_at(described(uncalled, model))

    assert having("/me/chunks.py:5", "/me/act.py:2") == (
        "module class Model; its run_0 is defined at /me/chunks.py:5; its run_1 is defined at "
        "/me/act.py:2"
    )
    assert having("/env/site-packages/framework/loop.py:5", "/me/model.py:9") == (
        "module class Model"
    )


def test_a_wrong_input_is_named_with_the_line_that_makes_it(tmp_path: Path) -> None:
    right = [Flow(flow("", "input.0", "input"), values("batch", 4)), Flow(flow(""), values("y", 4))]
    differing = [replace(each, change=lambda at, part: part + 1) for each in right]
    wrong = called(tmp_path, right, differing, TP)
    made = Made("input", "input.0", "/me/data.py:3")
    assert look_at(wrong, MODEL, made) == "calls the model; input.0 is made at /me/data.py:3"
    other = Made("input", "input.1", "/me/data.py:3")
    assert look_at(wrong, MODEL, other) == "calls the model"


def test_a_wrong_gradient_of_the_models_output_is_reported_with_the_line_of_the_loss(
    tmp_path: Path,
) -> None:
    doubled = only("activation_grad", "fc2.output", lambda r, at, part: part * 2)
    wrong = calling(rung(tmp_path, TP, doubled), norm="", fc1="")
    made = Made("loss", "", "/me/loss.py:24")
    found = located_faults(noting(wrong, BACKWARD, made))
    assert found.source == "/me/loss.py:24"
    assert found.what == "makes the loss; the backward starts at /me/fit.py:31"
    assert look_at(wrong, BACKWARD) == "starts the backward"


def test_a_scaled_loss_beside_a_wrapper_that_averages_says_what_a_rank_divides_it_by(
    tmp_path: Path,
) -> None:
    wrapper = NoteEvent("averages", "DistributedDataParallel")
    said = "; DistributedDataParallel averages gradients over ranks, so a rank divides its loss by"
    halves = only("activation_grad", "fc2.output", lambda r, at, part: part / 2)
    moves = only("activation_grad", "fc2.output", lambda r, at, part: part + 1)
    for name, edit in (("scaled", halves), ("other", moves)):
        wrong = calling(rung(tmp_path / name, TP, edit), norm="", fc1="")
        noted = text_of(located_faults(noting(wrong, BACKWARD, wrapper)))
        assert "differentiates is wrong" in noted
        assert (said in noted) == (name == "scaled")
        assert said not in text_of(located_faults(noting(wrong, BACKWARD)))


def test_a_loss_that_is_scaled_where_its_backward_starts_is_named_where_it_is_computed(
    tmp_path: Path,
) -> None:
    doubled = only("activation_grad", "fc2.output", lambda r, at, part: part * 2)
    wrong = calling(rung(tmp_path, TP, doubled), norm="", fc1="")
    made = Made("loss", "", "/me/fit.py:31", ("/me/loss.py:24", "/me/loss.py:9", "/me/count.py:2"))
    found = located_faults(noting(wrong, BACKWARD, made))
    assert found.source == "/me/loss.py:24"
    assert found.what == (
        "makes the loss from what is computed at /me/loss.py:9 and /me/count.py:2; the backward "
        "starts at /me/fit.py:31"
    )
    alone = located_faults(noting(wrong, BACKWARD, Made("loss", "", "/me/fit.py:31")))
    assert (alone.source, alone.what) == ("/me/fit.py:31", "makes the loss and starts the backward")


def test_a_loss_that_agrees_is_scaled_on_a_line_below_the_one_that_reports_it(
    tmp_path: Path,
) -> None:
    doubled = only("activation_grad", "fc2.output", lambda r, at, part: part * 2)
    wrong = calling(rung(tmp_path, TP, doubled), norm="", fc1="")
    reported = Site("loss", "/me/fit.py:30")
    made = Made("loss", "", "/me/fit.py:31", ("/me/fit.py:29", "/me/loss.py:24"))
    found = located_faults(noting(wrong, BACKWARD, reported, made))
    assert found.source == "/me/fit.py:31"
    assert found.what == (
        "makes the loss from what is computed at /me/fit.py:29 and /me/loss.py:24 and starts the "
        "backward"
    )
    # The nearest line below, where a package's own loop scales the loss once more.
    again = Made("loss", "", "/me/fit.py:50", ("/me/fit.py:33", "/me/fit.py:29"))
    assert located_faults(noting(wrong, BACKWARD, reported, again)).source == "/me/fit.py:33"


def test_a_module_is_named_with_the_users_line_in_the_constructor_around_it(
    of_norm: RungTraces,
) -> None:
    inside = SetUp("norm", "/env/site-packages/framework/loop.py:5", "/me/stage.py:12")
    assert look_at(of_norm, inside) == "module class Norm; norm is set up at /me/stage.py:12"


def test_a_second_class_with_wrong_weight_gradients_is_named(tmp_path: Path) -> None:
    def both(record: Record, at: dict[str, int], part: torch.Tensor) -> torch.Tensor:
        wrong = record.id.kind == "param_grad" and record.id.module in ("norm", "fc1")
        return part + 1 if wrong else part

    wrong = calling(rung(tmp_path, TP, both), norm="", fc1="", fc2="")
    first, what = located_faults(wrong).source, look_at(wrong, PLACED)
    assert "; another class with wrong parameters is " in what
    assert first not in what.partition("another class")[2]


def test_annotations_are_located_where_they_are_passed_unless_they_are_in_a_file(
    of_norm: RungTraces,
) -> None:
    def place(*facts: msgspec.Struct) -> tuple[str, str]:
        return said(Places(noting(of_norm, *facts).candidate, PROGRAM).of_annotations())

    watch = Site("watch", "/me/fit.py:12")
    line = ("/me/fit.py:12", "passes the annotations to ctx.watch")
    assert place(watch, Annotations(given=True)) == line
    assert place(watch, Annotations("/me/layouts.yaml", given=True)) == ("", "")


def test_a_line_that_passes_no_annotation_is_not_named_as_the_one_that_passes_them(
    of_norm: RungTraces,
) -> None:
    watch = Site("watch", "/me/fit.py:12")
    noted = noting(of_norm, watch, Annotations())
    assert Places(noted.candidate, PROGRAM).of_annotations() == NOWHERE


def test_a_module_that_a_constructor_sets_up_names_its_line_there_and_the_call(
    tmp_path: Path,
) -> None:
    nested = SetUp("norm", "/me/apply.py:7", "/me/attention.py:31")
    trace = write(tmp_path, training(steps=1), notes=[nested])

    [inside] = set_up(trace, "norm", "/me/norm.py:3")
    assert str(inside) == "norm is set up at /me/attention.py:31, called at /me/apply.py:7"
    assert inside.beside("/me/attention.py:31") == "norm is set up, called by /me/apply.py:7"
    assert inside.beside("/me/apply.py:7") == "calls /me/attention.py:31, where norm is set up"
    [outside] = set_up(trace, "norm", "/me/attention.py:3")
    assert str(outside) == "norm is set up at /me/apply.py:7"
    assert set_up(trace, "fc1", "/me/norm.py:3") == []
