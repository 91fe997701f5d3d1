"""The report says only of modules that were called and compared that they agree."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from pytest_trainsafe.core.point import Point
from pytest_trainsafe.judges.compare.compare import compare
from pytest_trainsafe.judges.compare.explain.common_factor import with_factor
from pytest_trainsafe.judges.compare.localize.blame import PROGRAM, Fault
from pytest_trainsafe.judges.compare.localize.description import located
from pytest_trainsafe.judges.compare.localize.of_modules import given_beside
from pytest_trainsafe.sweep.program import Program
from pytest_trainsafe.trace.facts import Made, Site
from pytest_trainsafe.trace.schema import ModuleEvent, NoteEvent
from tests.support.compare.clipped_traces import rung
from tests.support.compare.traces import Record, only
from tests.support.localize.blamed_traces import (
    blamed,
    calling,
    described,
    located_faults,
    noting,
    text_of,
)

TP = Point.of(tp=2)


def nothing(record: Record, at: dict[str, int], part: torch.Tensor) -> None:
    return None


def uncalled(record: Record, at: dict[str, int], part: torch.Tensor) -> torch.Tensor | None:
    """fc1 is never called, and has no gradients."""
    activation = record.id.kind in ("activation", "activation_grad", "param_grad")
    return None if record.id.module == "fc1" and activation else part


def test_a_module_that_is_never_called_is_reported_with_its_caller_as_the_place(
    tmp_path: Path,
) -> None:
    wrong = calling(rung(tmp_path, TP, uncalled), fc1="", fc2="", norm="")
    first = blamed(wrong)[0]
    assert (first.phase, first.target, first.uncalled) == ("forward", "fc1", "never")
    found = located_faults(wrong)
    assert "fc1 (class Fc1) is never called" in text_of(found)
    assert "agree" not in text_of(found).partition("never called")[0]
    # The module's own code never ran, so the report points at the module that should call it.
    assert found.what.startswith("module class Model")


def test_of_nested_uncalled_modules_only_the_outermost_is_blamed(
    tmp_path: Path,
) -> None:
    def both(record: Record, at: dict[str, int], part: torch.Tensor) -> torch.Tensor | None:
        flows = record.id.kind in ("activation", "activation_grad", "param_grad")
        return None if record.id.module in ("fc1", "fc2") and flows else part

    wrong = calling(rung(tmp_path, TP, both), fc1="", fc2="fc1", norm="")
    assert [f.target for f in blamed(wrong) if f.phase == "forward"] == ["fc1"]


def test_a_module_whose_second_call_is_missing_is_reported_as_called_less_often(
    tmp_path: Path,
) -> None:
    def late(record: Record, at: dict[str, int], part: torch.Tensor) -> torch.Tensor | None:
        gone = record.id.module == "fc1" and record.id.microbatch == 1
        return None if gone and record.id.kind == "activation" else part

    wrong = calling(rung(tmp_path, TP, late), fc1="", fc2="", norm="")
    assert blamed(wrong)[0].uncalled == "less"
    assert "is called less often than in the reference" in text_of(located_faults(wrong))


def test_the_report_says_that_inputs_were_not_compared(tmp_path: Path) -> None:
    wrong = rung(tmp_path, TP, only("activation", "norm.output", lambda r, at, part: part + 1))
    text = text_of(located_faults(wrong))
    assert "the forward of norm (class Norm): its output differs" in text
    assert "inputs were not compared" in text


def test_the_count_of_agreeing_modules_excludes_a_module_that_was_not_compared(
    tmp_path: Path,
) -> None:
    double = only("main_grad", "fc2.weight", lambda r, at, part: part * 2)
    wrong = noting(rung(tmp_path, TP, double, limit=0), NoteEvent("local", "activation fc1"))
    assert "of the 2 of 3 modules that were compared agree" in text_of(located_faults(wrong))


def test_a_forward_replaced_on_the_instance_is_the_reported_source(tmp_path: Path) -> None:
    wrong = described(
        rung(tmp_path, TP, only("activation", "norm.output", lambda r, at, part: part + 1)),
        ModuleEvent("norm", "Norm", "/user/norm.py:3", (), "/user/fast.py:7"),
    )
    found = located_faults(wrong)
    assert (found.source, found.what) == (
        "/user/fast.py:7",
        "module class Norm, with a replaced forward",
    )


def test_a_fault_in_an_installed_class_is_reported_with_the_users_line_that_calls_the_model(
    tmp_path: Path,
) -> None:
    wrong = described(
        rung(tmp_path, TP, only("activation", "norm.output", lambda r, at, part: part + 1)),
        ModuleEvent("norm", "Norm", "/env/lib/site-packages/framework/norm.py:3"),
    )
    site = Site("model", "/env/lib/site-packages/framework/loop.py:5", "/me/fit.py:9")
    found = located_faults(noting(wrong, site))
    assert found.source.endswith("site-packages/framework/norm.py:3")
    assert "the model is called at /me/fit.py:9" in found.what


def test_the_model_is_the_reported_source_if_the_blamed_class_is_torchs(tmp_path: Path) -> None:
    wrong = described(
        rung(tmp_path, TP, only("activation", "norm.output", lambda r, at, part: part + 1)),
        ModuleEvent("norm", "LayerNorm", "/env/lib/site-packages/torch/nn/modules/norm.py:3"),
    )
    assert located_faults(wrong).what == "module class Model"


def test_a_fault_in_an_installed_class_that_no_line_of_the_user_calls_is_named_with_the_program(
    tmp_path: Path,
) -> None:
    """As in a loop of this package, which calls the framework for the user."""
    wrong = described(
        rung(tmp_path, TP, only("activation", "norm.output", lambda r, at, part: part + 1)),
        ModuleEvent("norm", "Norm", "/env/lib/site-packages/framework/norm.py:3"),
    )
    comparison = with_factor(wrong, compare(wrong))
    program = Program(path="programs:train", file=__file__)
    found = located(blamed(wrong), comparison, wrong, program, "")
    assert found.source.endswith("site-packages/framework/norm.py:3")
    assert found.what.endswith("test_localize_modules.py:1")
    assert "the program is at" in found.what


def test_the_line_that_calls_the_model_is_not_said_to_make_an_output_in_it(tmp_path: Path) -> None:
    """The innermost line of the user is the one that calls the package."""
    wrong = described(
        rung(tmp_path, TP, only("activation", "norm.output", lambda r, at, part: part + 1)),
        ModuleEvent("norm", "Norm", "/env/lib/site-packages/framework/norm.py:3"),
    )
    site = Site("model", "/env/lib/site-packages/framework/loop.py:5", "/me/fit.py:9")
    found = located_faults(noting(wrong, site, Made("output", "norm", "/me/fit.py:9")))
    assert found.what == "module class Norm; the model is called at /me/fit.py:9"


@pytest.mark.parametrize(
    ("faults", "said"),
    [
        ([Fault("backward", "moe", between=True), Fault("loss", PROGRAM)], True),
        ([Fault("backward", "moe"), Fault("loss", PROGRAM)], False),
        ([Fault("forward", "fc1"), Fault("backward", "moe", between=True)], False),
    ],
    ids=["its own backward", "a layer's backward", "a forward too"],
)
def test_a_wrong_loss_beside_a_backward_alone_is_what_the_module_gives_it(
    faults: list[Fault], said: bool
) -> None:
    text = "so look at what moe gives the loss beside its output, such as an auxiliary loss"
    assert given_beside(faults).endswith(text) == said
    assert bool(given_beside(faults)) == said
