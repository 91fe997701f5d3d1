"""Where no gradient reaches a module's output, what detaches it is blamed, not the weights.

An encoder and a decoder are called by a model; each calls a linear layer.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_trainsafe.core.point import Point
from pytest_trainsafe.core.tensor_id import TensorId
from pytest_trainsafe.judges.compare.compare import compare
from pytest_trainsafe.judges.compare.localize.blame import Fault, Stages, blame
from pytest_trainsafe.judges.compare.localize.description import located
from pytest_trainsafe.judges.compare.localize.scales import scales
from pytest_trainsafe.judges.compare.rung import RungTraces
from pytest_trainsafe.trace.schema import ModuleEvent
from tests.support.localize.blamed_traces import PROGRAM, described, text_of
from tests.support.localize.call_traces import Flow, flow, rung, values

CALLERS = {"enc.fc": "enc", "enc": "model", "dec.fc": "dec", "dec": "model"}
ORDER = ("enc.fc", "enc", "dec.fc", "dec", "model")


def gradient(module: str, name: str = "output", kind: str = "activation_grad") -> TensorId:
    return flow(module, name, kind)  # type: ignore[arg-type]


FORWARD = [Flow(flow(name), values(name, 4, 4)) for name in ORDER]
BACKWARD = [Flow(gradient(name), values(f"grad {name}", 4, 4)) for name in reversed(ORDER)]
WEIGHTS = [
    Flow(gradient(name, "weight", "param_grad"), values(f"weight {name}", 4, 4))
    for name in ("dec.fc", "enc.fc")
]
ALL = [*FORWARD, *BACKWARD, *WEIGHTS]


def traced(folder: Path, *lost: str, others: str = "Decoder") -> RungTraces:
    """A rung in which no gradient reaches the outputs and weights of the modules `lost`."""
    candidate = [each for each in ALL if each.id.kind == "activation" or each.id.module not in lost]
    made = rung(folder, ALL, candidate, Point.of(tp=2), CALLERS)
    return described(
        made,
        ModuleEvent("enc", "Encoder", "/me/model.py:10"),
        ModuleEvent("dec", others, f"/me/model.py:{10 if others == 'Encoder' else 20}"),
        ModuleEvent("model", "Model", "/me/model.py:30"),
    )


def faults(made: RungTraces) -> list[Fault]:
    return blame(
        made, compare(made), scales(made.reference, made.candidate), Stages(made.candidate)
    )


def test_the_module_whose_output_no_gradient_reaches_is_blamed_and_its_caller_named(
    tmp_path: Path,
) -> None:
    made = traced(tmp_path, "enc", "enc.fc")
    [found] = faults(made)
    assert (found.phase, found.target, found.cut) == ("backward", "enc", "enc")
    report = located([found], compare(made), made, PROGRAM, "")
    assert (
        "unlike in the reference, so the parameters before it get none: Encoder.forward detaches "
        "it, or its caller does, or computes without gradients"
    ) in text_of(report)
    assert report.source == "/me/model.py:10"


def test_the_caller_is_blamed_if_gradients_reach_other_modules_of_the_class(
    tmp_path: Path,
) -> None:
    made = traced(tmp_path, "enc", "enc.fc", others="Encoder")
    [found] = faults(made)
    assert (found.phase, found.target, found.cut) == ("backward", "model", "enc")
    report = located([found], compare(made), made, PROGRAM, "")
    assert "before it get none: Model.forward detaches it, or computes" in text_of(report)
    assert report.source == "/me/model.py:30"


def test_a_module_that_detaches_what_its_own_layer_makes_is_blamed(tmp_path: Path) -> None:
    [found] = faults(traced(tmp_path, "enc.fc"))
    assert (found.phase, found.target, found.cut) == ("backward", "enc", "enc.fc")


@pytest.mark.parametrize("kept", [True, False])
def test_weights_alone_without_gradients_are_blamed_themselves(tmp_path: Path, kept: bool) -> None:
    """As if they were frozen in the candidate: gradients reach the outputs of their module."""
    candidate = ALL if kept else [each for each in ALL if each.id != WEIGHTS[1].id]
    made = rung(tmp_path, ALL, candidate, Point.of(tp=2), CALLERS)
    assert faults(made) == ([] if kept else [Fault("weights", "enc.fc.weight")])
