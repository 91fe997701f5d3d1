"""No sentence of a localisation contradicts another one, or the comparison."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from pytest_trainsafe.core.point import Point
from pytest_trainsafe.core.tensor_id import Kind
from pytest_trainsafe.judges.compare.compare import compare
from pytest_trainsafe.judges.compare.explain.common_factor import with_factor
from pytest_trainsafe.judges.compare.localize.blame import PROGRAM as OUTSIDE
from pytest_trainsafe.judges.compare.localize.blame import Fault
from pytest_trainsafe.judges.compare.localize.description import located
from pytest_trainsafe.judges.compare.rung import RungTraces
from tests.support.compare.clipped_traces import both, rung
from tests.support.compare.traces import Edit, Record, only
from tests.support.localize.blamed_traces import PROGRAM, calling, text_of

TP = Point.of(tp=2)
CLEARED = "the model is not at fault"


def report(wrong: RungTraces, *faults: Fault) -> str:
    """The text on `faults`."""
    comparison = with_factor(wrong, compare(wrong))
    return text_of(located(faults, comparison, wrong, PROGRAM, ""))


def shifted(kind: Kind, path: str) -> Edit:
    return only(kind, path, lambda record, at, part: part + 1.0, step=0)


@pytest.fixture(scope="module")
def of_fc1(tmp_path_factory: pytest.TempPathFactory) -> RungTraces:
    """The output of fc1 is wrong; the model calls fc1 and the norm."""
    made = rung(tmp_path_factory.mktemp("fc1"), TP, shifted("activation", "fc1.output"))
    return calling(made, fc1="", norm="")


@pytest.mark.parametrize("outside", [Fault("data", OUTSIDE), Fault("forward", OUTSIDE)])
@pytest.mark.parametrize(
    "inside",
    [
        Fault("forward", "fc1"),
        Fault("forward", "", between=True),
        Fault("backward", "fc1"),
        Fault("weights", "fc1.weight"),
        Fault("buffer", "fc1"),
    ],
    ids=lambda fault: f"{fault.phase} {fault.target}",
)
def test_the_model_is_cleared_only_if_no_part_of_it_is_at_fault(
    of_fc1: RungTraces, outside: Fault, inside: Fault
) -> None:
    assert CLEARED in report(of_fc1, outside)
    assert CLEARED in report(of_fc1, outside, Fault("optimizer", "fc1.weight"))
    assert CLEARED not in report(of_fc1, outside, inside)


def test_a_wrong_reported_loss_clears_the_model_only_if_no_part_of_it_is_at_fault(
    tmp_path: Path,
) -> None:
    wrong = rung(tmp_path, TP, shifted("loss", "loss"))
    assert CLEARED in report(wrong, Fault("loss", OUTSIDE))
    assert CLEARED not in report(wrong, Fault("loss", OUTSIDE), Fault("weights", "fc1.bias"))


def test_modules_of_which_one_differs_are_not_said_to_agree(of_fc1: RungTraces) -> None:
    assert "agrees; the loss" not in report(of_fc1, Fault("loss", OUTSIDE))
    assert "agree" not in report(of_fc1, Fault("backward", OUTSIDE))


def test_code_between_modules_of_which_one_differs_is_described_without_their_agreement(
    of_fc1: RungTraces,
) -> None:
    """The wrong input of a module makes its output wrong; both Runs go on with equal outputs."""
    text = report(of_fc1, Fault("forward", "", between=True))
    assert (
        "outside its submodules: given equal outputs of these, its own code, attributes or" in text
    )
    assert "agree" not in text


def test_a_module_whose_arriving_gradient_differs_is_described_without_its_agreement(
    tmp_path: Path,
) -> None:
    wrong = rung(tmp_path, TP, shifted("activation_grad", "fc1.output"))
    text = report(wrong, Fault("backward", "fc1"))
    assert "given equal gradients of its output, the gradients of its inputs differ" in text


def test_a_group_of_modules_is_said_to_have_uncompared_inputs_if_one_of_them_has(
    of_fc1: RungTraces,
) -> None:
    first, second = Fault("forward", "fc1"), Fault("forward", "fc1", not_compared=True)
    assert "given equal inputs" not in report(of_fc1, first, second)


def test_a_wrong_clip_is_not_said_to_follow_agreeing_gradients_if_one_differs(
    tmp_path: Path,
) -> None:
    def half(record: Record, at: dict[str, int], part: torch.Tensor) -> torch.Tensor:
        norm, clips = record.id.kind == "grad_norm", record.id.kind == "main_grad"
        return part * 2 if norm else part / 2 if clips else part

    agree = "each micro-batch's gradient agrees"
    assert agree in report(rung(tmp_path / "clip", TP, half), Fault("norm", OUTSIDE))
    wrong = rung(tmp_path / "both", TP, both(half, shifted("param_grad", "fc1.bias")))
    assert agree not in report(wrong, Fault("norm", OUTSIDE))


def test_the_optimizer_is_not_said_to_receive_agreeing_gradients_if_one_differs(
    tmp_path: Path,
) -> None:
    agree = "every gradient that the optimizer receives agrees"
    step = Fault("optimizer", "fc1.bias")
    wrong = rung(tmp_path / "step", TP, shifted("param", "fc1.bias"), limit=0)
    assert agree in report(wrong, step)
    edit = both(shifted("param", "fc1.bias"), shifted("main_grad", "fc1.weight"))
    assert agree not in report(rung(tmp_path / "both", TP, edit, limit=0), step)
