"""The text of a tensor's id names the tensor for a person."""

from __future__ import annotations

from pytest_trainsafe.core.tensor_id import INITIAL, Kind, TensorId


def text(kind: Kind, module: str, name: str, step: int = 0) -> str:
    return str(TensorId(step, None, kind, module, name))


def test_an_output_of_the_root_module_is_not_written_like_that_of_a_layer() -> None:
    assert text("activation", "", "output") == "output (root module) · activation · step 0"
    assert text("activation_grad", "", "output.1").startswith("output.1 (root module) · ")
    assert text("activation", "output", "output") == "output.output · activation · step 0"


def test_parameters_and_inputs_of_the_root_module_have_their_names_alone() -> None:
    assert text("param", "", "weight", INITIAL) == "weight · param · before the first step"
    assert text("input", "", "input.0") == "input.0 · input · step 0"
